//! The arguments or the environment of a program, as execve(2) takes them.
//!
//! All strings are in one block of memory, each with a NUL at its end. The warden forks for each start, and after a fork
//! the kernel copies each page that the warden writes to: dozens of small strings on as many pages would cost more than
//! the rest of the start.

use std::ffi::{CStr, FromBytesWithNulError};
use std::fmt;

use serde::de::{DeserializeSeed, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes that a job's environment seldom exceeds.
const USUAL_BYTES: usize = 1 << 10;
/// Number of variables that a job's environment seldom exceeds.
const USUAL_STRINGS: usize = 32;

/// A list of strings; those of an environment have the form `name=value`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExecStrings {
    text: String,
    /// Where each string ends in `text`, behind its NUL.
    ends: Vec<usize>,
}

impl ExecStrings {
    /// An environment of these variables.
    pub fn of_variables<N: AsRef<str>, V: AsRef<str>>(variables: impl IntoIterator<Item = (N, V)>) -> Self {
        let mut all = Self::default();
        variables.into_iter().for_each(|(name, value)| all.push_variable(name.as_ref(), value.as_ref()));
        all
    }

    /// Appends a string.
    pub fn push(&mut self, string: &str) {
        self.push_parts(&[string]);
    }

    /// Appends a variable of an environment.
    pub fn push_variable(&mut self, name: &str, value: &str) {
        self.push_parts(&[name, "=", value]);
    }

    fn push_parts(&mut self, parts: &[&str]) {
        parts.iter().for_each(|part| self.text.push_str(part));
        self.text.push('\0');
        self.ends.push(self.text.len());
    }

    pub fn first(&self) -> Option<&str> {
        self.iter().next()
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.with_nul().map(|string| &string[..string.len() - 1])
    }

    /// The names and values of an environment.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.iter().map(|string| string.split_once('=').unwrap_or((string, "")))
    }

    /// The value of a variable. If it occurs twice, the last one counts, as for a shell.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables().filter(|(other, _)| *other == name).last().map(|(_, value)| value)
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The strings as C takes them; an error in place of one that contains a NUL byte.
    pub fn c_strings(&self) -> impl Iterator<Item = Result<&CStr, FromBytesWithNulError>> {
        self.with_nul().map(|string| CStr::from_bytes_with_nul(string.as_bytes()))
    }

    fn with_nul(&self) -> impl Iterator<Item = &str> {
        let begins = [0].into_iter().chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, &end)| &self.text[begin..end])
    }
}

impl<S: AsRef<str>> FromIterator<S> for ExecStrings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut all = Self::default();
        strings.into_iter().for_each(|string| all.push(string.as_ref()));
        all
    }
}

impl fmt::Debug for ExecStrings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

impl Serialize for ExecStrings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for ExecStrings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(AllStrings)
    }
}

struct AllStrings;

impl<'de> Visitor<'de> for AllStrings {
    type Value = ExecStrings;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of strings")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ExecStrings, A::Error> {
        // Room for what is usual, so that few of them have to be moved to more memory on the way.
        let mut all = ExecStrings { text: String::with_capacity(USUAL_BYTES), ends: Vec::with_capacity(USUAL_STRINGS) };
        while list.next_element_seed(NextString(&mut all))?.is_some() {}
        Ok(all)
    }
}

/// Appends the next string of a list, without memory of its own.
struct NextString<'a>(&'a mut ExecStrings);

impl<'de> DeserializeSeed<'de> for NextString<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for NextString<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string")
    }

    fn visit_str<E>(self, string: &str) -> Result<(), E> {
        self.0.push(string);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn a_list_keeps_its_strings(strings in prop::collection::vec(".*", 0..5)) {
            let list: ExecStrings = strings.iter().collect();
            prop_assert_eq!(list.iter().collect::<Vec<_>>(), strings.iter().map(String::as_str).collect::<Vec<_>>());
            let json = serde_json::to_string(&list).unwrap();
            prop_assert_eq!(&json, &serde_json::to_string(&strings).unwrap());
            prop_assert_eq!(&serde_json::from_str::<ExecStrings>(&json).unwrap(), &list);
            match list.c_strings().collect::<Result<Vec<_>, _>>() {
                Ok(all) => prop_assert!(all.iter().zip(&strings).all(|(c, string)| c.to_bytes() == string.as_bytes())),
                Err(_) => prop_assert!(strings.iter().any(|string| string.contains('\0'))),
            }
        }
    }

    #[test]
    fn a_nul_byte_does_not_divide_a_string() {
        let list: ExecStrings = ["a", "b\0c"].into_iter().collect();
        assert_eq!(list.iter().count(), 2);
        assert!(list.c_strings().last().is_some_and(|last| last.is_err()));
    }

    #[test]
    fn of_two_variables_with_one_name_the_last_counts() {
        let environment = ExecStrings::of_variables([("A", "1"), ("B", "x=y"), ("A", "2")]);
        assert_eq!((environment.variable("A"), environment.variable("B")), (Some("2"), Some("x=y")));
        assert_eq!(environment.variable("C"), None);
        assert_eq!(environment.variables().collect::<Vec<_>>(), [("A", "1"), ("B", "x=y"), ("A", "2")]);
    }
}
