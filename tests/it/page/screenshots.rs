//! Pictures of the page at three sizes, light and dark. `tests/screenshots.sh` runs this and names the folder.

use std::path::Path;

use serde_json::json;

use super::{listening, unused};
use crate::solo::fixture::{await_record, following, leading, node};
use crate::support::browser::Browser;

const SIZES: [(&str, u32, u32); 3] = [("phone", 360, 740), ("tablet", 800, 1000), ("desktop", 1280, 900)];

/// Jobs of a small shop, one of which fails.
const JOBS: &str = "jobs:
  check-certificates: {schedule: '*/2 * * * * *', command: 'true', description: Warns before a certificate expires}
  import-orders: {schedule: '*/3 * * * * *', command: 'sleep 0.$(( $(date +%s) % 8 ))'}
  mail-invoices: {schedule: '*/5 * * * * *', command: 'echo no connection to mail.example.org; exit 1'}
  nightly-backup: {schedule: '30 2 * * *', timezone: Europe/Berlin, command: 'true'}
  hourly-report: {schedule: '15 * * * *', command: 'true'}
  reindex: {schedule: '@every 10s', command: 'sleep 8'}
  load-warehouse: {after: {nightly-backup: success}, command: 'true'}
";

#[test]
#[ignore = "tests/screenshots.sh runs it"]
fn the_page_has_its_picture_taken() {
    let folder = std::env::var_os("CRONKEEPER_SCREENSHOTS").expect("the script names a folder");
    let at = unused();
    let first = node("host-a").jobs(JOBS);
    let _a = leading(&listening(first.clone(), at));
    let second = node("host-b").beside(&first);
    let _b = following(&second);
    let _c = following(&node("host-c").beside(&first));
    for (job, count) in [("mail-invoices", 5), ("check-certificates", 20)] {
        let seen = std::sync::Mutex::new(std::collections::BTreeSet::new());
        await_record(&first, job, |record| {
            let mut seen = seen.lock().unwrap();
            seen.insert(record["run"].to_string());
            seen.len() >= count
        });
    }
    for (name, width, height) in SIZES {
        for is_dark in [false, true] {
            let browser = if is_dark { Browser::dark(width, height) } else { Browser::start(width, height) };
            browser.open(&format!("http://{at}/"));
            browser.await_text("#live", |text| text.contains("up to date"));
            let scheme = if is_dark { "dark" } else { "light" };
            let is_as_asked = browser.run("return matchMedia('(prefers-color-scheme: dark)').matches");
            assert_eq!(is_as_asked, json!(is_dark));
            let too_wide = browser.run("return document.documentElement.scrollWidth > innerWidth");
            assert_eq!(too_wide, json!(false), "{name}");
            // The script turns the text into a picture.
            let path = Path::new(&folder).join(format!("{name}-{scheme}.png.base64"));
            std::fs::write(path, browser.screenshot()).expect("the folder can be written");
        }
    }
}
