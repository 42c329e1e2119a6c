//! Fuzz tests: arbitrary crontabs.

use super::hostile::assert_complete;
use super::*;
use crate::fuzz::Fuzz;

const WORDS: &[&str] = &[
    "\n",
    "* * * * * ",
    "30 2 * * 1-5 ",
    "@daily ",
    "@reboot ",
    "@every 5 ",
    "0 0 30 2 * ",
    "~ 0~9 * * * ",
    "*/7",
    "60",
    "sun,Mon",
    "root ",
    "nobody:nogroup ",
    "-n ",
    "-q ",
    "&",
    "%",
    "\\%",
    "\\",
    "'",
    "\"",
    "#",
    "=",
    "A=b\n",
    "A=\"\"\n",
    "SHELL=/bin/bash\n",
    "MAILTO=x\n",
    "CRON_TZ=UTC\n",
    "CRON_TZ=x\n",
    "RANDOM_DELAY=5\n",
    "HOME=/x\n",
    "LOGNAME=x\n",
    "INPUT",
    "<<'INPUT'",
    "exec ",
    "cd / && ",
    "\t",
    "\r\n",
    "\u{feff}",
    "\u{85}",
    "\u{2028}",
];

fn is_imported(input: &[u8], system: bool) -> bool {
    let imported = import(input, &origin(system));
    if let Ok(imported) = &imported {
        assert_complete(input, system, imported);
    }
    imported.is_ok()
}

#[test]
fn fuzz_crontab_of_a_user() {
    Fuzz { longest: 4 << 10, ..Fuzz::of("crontab", WORDS) }.run(|input| is_imported(input, false));
}

#[test]
fn fuzz_crontab_of_the_system() {
    Fuzz { longest: 4 << 10, ..Fuzz::of("crontab", WORDS) }.run(|input| is_imported(input, true));
}
