//! Parts of an expression with their position in it.

/// A part of the text, and the number of characters before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    pub(super) text: &'a str,
    pub(super) offset: usize,
}

impl<'a> Piece<'a> {
    pub(super) fn whole(text: &'a str) -> Self {
        Self { text, offset: 0 }
    }

    /// The part of `length` bytes from byte `start` on. Both must be at character boundaries of this text.
    fn part(self, start: usize, length: usize) -> Self {
        let before = self.text[..start].chars().count();
        Self { text: &self.text[start..start + length], offset: self.offset + before }
    }

    /// The parts between white space.
    pub(super) fn words(self) -> Vec<Self> {
        let mut words = Vec::new();
        let mut offset = self.offset;
        let mut rest = self.text;
        loop {
            let trimmed = rest.trim_start();
            offset += rest[..rest.len() - trimmed.len()].chars().count();
            if trimmed.is_empty() {
                return words;
            }
            let end = trimmed.find(char::is_whitespace).unwrap_or(trimmed.len());
            words.push(Self { text: &trimmed[..end], offset });
            offset += trimmed[..end].chars().count();
            rest = &trimmed[end..];
        }
    }

    /// The parts between commas.
    pub(super) fn items(self) -> impl Iterator<Item = Self> {
        let mut offset = self.offset;
        self.text.split(',').map(move |text| {
            let item = Self { text, offset };
            offset += text.chars().count() + 1;
            item
        })
    }

    /// Both sides of the first `separator`.
    pub(super) fn split_once(self, separator: char) -> Option<(Self, Self)> {
        let at = self.text.find(separator)?;
        let behind = at + separator.len_utf8();
        Some((self.part(0, at), self.part(behind, self.text.len() - behind)))
    }

    /// All but the last character.
    pub(super) fn without_last(self) -> Self {
        let end = self.text.char_indices().next_back().map_or(0, |(end, _)| end);
        self.part(0, end)
    }

    /// The part between `prefix` and `suffix`; `None` if either is missing.
    pub(super) fn between(self, prefix: &str, suffix: &str) -> Option<Self> {
        let inner = self.text.strip_prefix(prefix)?.strip_suffix(suffix)?;
        Some(self.part(prefix.len(), inner.len()))
    }
}
