//! Pictures of the page at three sizes, light and dark, of clusters with no, few and many jobs, in good and bad times.
//! `tests/screenshots.sh` runs this and names the folder. What must be seen without scrolling is checked too.

use std::collections::BTreeSet;
use std::net::SocketAddrV4;
use std::path::Path;
use std::sync::Mutex;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{TOKEN, listening, unused};
use crate::solo::fixture::{PROGRAM, await_record, following, leading, node, post};
use crate::support::browser::Browser;
use crate::support::etcd::Etcd;
use crate::support::node::Spec;
use crate::support::scratch::Scratch;

const SIZES: [(&str, u32, u32); 3] = [("phone", 400, 800), ("tablet", 800, 1000), ("desktop", 1400, 900)];

/// A browser of each size and scheme, with the end of the names of its pictures.
struct Browsers(Vec<(String, Browser)>);

impl Browsers {
    fn start() -> Self {
        let of_size = |(size, width, height): (&str, u32, u32)| {
            [
                (format!("{size}-light"), Browser::start(width, height)),
                (format!("{size}-dark"), Browser::dark(width, height)),
            ]
        };
        Self(SIZES.into_iter().flat_map(of_size).collect())
    }

    fn sign_in(&self, at: SocketAddrV4) {
        for (_, browser) in &self.0 {
            browser.open(&format!("http://{at}/session"));
            browser.type_into("#token", TOKEN);
            browser.click("main button");
            browser.await_text("header", |text| text.contains("Sign out"));
        }
    }

    fn open(&self, url: &str) {
        for (name, browser) in &self.0 {
            browser.open(url);
            browser.await_text("#live", |text| text.contains("up to date") || text.contains("knows now"));
            let is_dark = browser.run("return matchMedia('(prefers-color-scheme: dark)').matches");
            assert_eq!(is_dark, json!(name.ends_with("dark")), "{name}");
        }
    }

    /// Takes the pictures of what is open. The shell script turns the text into pictures.
    fn take(&self, scene: &str) {
        let folder = std::env::var_os("CRONKEEPER_SCREENSHOTS").expect("the script names a folder");
        for (name, browser) in &self.0 {
            let too_wide = browser.run("return document.documentElement.scrollWidth > innerWidth");
            assert_eq!(too_wide, json!(false), "{scene}-{name}");
            let path = Path::new(&folder).join(format!("{scene}-{name}.png.base64"));
            std::fs::write(path, browser.screenshot()).expect("the folder can be written");
        }
    }

    fn picture(&self, scene: &str, url: &str) {
        self.open(url);
        self.take(scene);
    }
}

/// This many jobs of a shop. One of three, two of thirty and a hundred and one of a thousand fail.
fn jobs(count: usize) -> String {
    let job = |schedule: &str, command: &str| json!({ "schedule": schedule, "command": command });
    let mail = "printf 'connecting\\n\\033[31mno connection to mail.example.org\\033[0m\\n'; exit 7";
    let export = "for i in $(seq 1 3000); do echo \"row $i of 3000\"; done; \
                  printf '\\033[1;33mwarning\\033[0m: \\033[44;97m disk 93 %% full \\033[0m\\n'; echo done >&2; \
                  sleep 9";
    let mut jobs: Vec<(String, Value)> = vec![
        ("check-certificates".into(), job("*/2 * * * * *", "true")),
        ("import-orders".into(), job("*/3 * * * * *", "sleep 0.$(( $(date +%s) % 8 ))")),
        ("mail-invoices".into(), job("*/5 * * * * *", mail)),
        (
            "nightly-backup".into(),
            json!({ "schedule": "30 2 * * *", "timezone": "Europe/Berlin", "command": "true",
                    "description": "Full backup of the catalogue" }),
        ),
        ("hourly-report".into(), json!({ "schedule": "15 * * * *", "command": "true", "parameters": ["REGION"] })),
        ("reindex".into(), job("@every 12s", "sleep 9")),
        ("load-warehouse".into(), json!({ "after": { "nightly-backup": "success" }, "command": "true" })),
        ("export-catalogue".into(), job("*/30 * * * * *", export)),
        ("rebuild-search".into(), json!({ "schedule": "*/15 * * * * *", "command": ["/etc/passwd"] })),
    ];
    let more = (0..count.saturating_sub(jobs.len())).map(|number| {
        let fails = count > 100 && number % 10 == 0;
        let (schedule, command) = match fails {
            true => ("*/20 * * * * *".to_owned(), "echo 'cannot open /srv/data: No such file'; exit 2"),
            false => (format!("{} {} * * * *", number % 60, number * 7 % 60), "true"),
        };
        (format!("task-{number:04}"), job(&schedule, command))
    });
    jobs.extend(more);
    jobs.truncate(count);
    let jobs: serde_json::Map<String, Value> = jobs.into_iter().collect();
    json!({ "jobs": jobs }).to_string()
}

/// Waits until a job has so many records.
fn await_records(spec: &Spec, job: &str, count: usize) {
    let seen = Mutex::new(BTreeSet::new());
    await_record(spec, job, |record| {
        let mut seen = seen.lock().expect("no holder has failed");
        seen.insert(record["run"].to_string());
        seen.len() >= count
    });
}

#[test]
#[ignore = "tests/screenshots.sh runs it"]
fn the_page_has_its_picture_taken() {
    let (browsers, dir) = (Browsers::start(), Scratch::new("token"));
    let token = dir.write("token", TOKEN);
    let serving = |spec: Spec, at| listening(spec, at).option("--api-token-file", token.to_str().expect("a path"));

    for count in [0, 3] {
        let (spec, at) = (node("host-a").jobs(&jobs(count)), unused());
        let _a = leading(&serving(spec.clone(), at));
        if count > 0 {
            await_records(&spec, "check-certificates", 15);
            await_records(&spec, "mail-invoices", 4);
        }
        browsers.sign_in(at);
        browsers.picture(&format!("jobs-{count}"), &format!("http://{at}/"));
    }

    let at = unused();
    let first = node("host-a").jobs(&jobs(30));
    let a = leading(&serving(first.clone(), at));
    let _b = following(&node("host-b").beside(&first));
    let _c = following(&node("host-c").beside(&first));
    await_records(&first, "check-certificates", 20);
    let export = await_record(&first, "export-catalogue", |record| record["outcome"].is_string());
    let search = await_record(&first, "rebuild-search", |record| record["outcome"].is_string());
    browsers.sign_in(at);
    let url = format!("http://{at}/");
    browsers.picture("usual", &url);
    browsers.picture("job", &format!("{url}jobs/mail-invoices"));
    browsers.picture("job-to-run", &format!("{url}jobs/hourly-report"));
    browsers.picture("history", &format!("{url}history?since=1h"));
    browsers.picture("run", &format!("{url}runs/{}", export["run"].as_str().expect("a run")));
    browsers.picture("not-started", &format!("{url}runs/{}", search["run"].as_str().expect("a run")));
    browsers.open(&url);
    a.kill9();
    for (_, browser) in &browsers.0 {
        browser.await_text("#stale", |text| text.contains("does not answer"));
    }
    browsers.take("node-dead");

    let (many, at) = (node("host-a").jobs(&jobs(1_000)), unused());
    let many_led = leading(&serving(many.clone(), at));
    await_records(&many, "task-0000", 3);
    browsers.sign_in(at);
    browsers.picture("jobs-1000", &format!("http://{at}/"));
    for (name, browser) in &browsers.0 {
        let seen = "const row = document.querySelector('.attention li').getBoundingClientRect(); \
                    return row.bottom <= innerHeight && row.height > 0";
        assert_eq!(browser.run(seen), json!(true), "{name}: the first failing job is above the fold");
        let size = browser.run("return performance.getEntriesByType('navigation')[0].decodedBodySize");
        assert!(size.as_u64().is_some_and(|size| (1..=150_000).contains(&size)), "{size} bytes");
    }
    drop(many_led);

    let etcd = Etcd::start(1);
    let settings = ["--etcd".to_owned(), etcd.place()];
    let host = |name: &str| Spec::new(PROGRAM, name).on_service(&settings).jobs(&jobs(9));
    let (first, second, at) = (host("host-a"), host("host-b"), unused());
    let _a = leading(&first);
    let _b = following(&serving(second, at));
    let (third, fourth) = (host("host-c"), host("host-d"));
    let _c = following(&third);
    let d = following(&fourth);
    assert_eq!(post(&first, &format!("/v1/nodes/{}/drain", third.name()), &json!({ "reason": "new disks" })).0, 200);
    d.kill9();
    await_records(&first, "mail-invoices", 2);
    browsers.sign_in(at);
    browsers.open(&format!("http://{at}/"));
    for (_, browser) in &browsers.0 {
        browser.await_text("#queue", |text| text.contains("missing") && text.contains("drained"));
    }
    browsers.take("node-missing");
    etcd.signal(0, Signal::STOP);
    for (_, browser) in &browsers.0 {
        browser.await_text("#headline", |text| text.contains("No leader known"));
    }
    browsers.take("no-quorum");
    etcd.signal(0, Signal::CONT);
}
