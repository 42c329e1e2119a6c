use cronkeeper::clock::Uptime;
use cronkeeper::warden::handle::Warden;
use cronkeeper::warden::wire::*;
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let exe = std::env::args().nth(1).unwrap();
    let mut w = Warden::spawn_from(exe.as_ref()).unwrap().into_async().unwrap();
    let idle: u32 = std::env::args().nth(2).map_or(0, |n| n.parse().unwrap());
    let launch = |n: u64, argv: &[&str]| {
        Order::Start(Box::new(Launch {
            slot: Slot(n),
            argv: argv.iter().map(|s| s.to_string()).collect(),
            environment: vec![("PATH".into(), "/bin".into()), ("CRONKEEPER_RUN_ID".into(), format!("b{n}"))],
            directory: "/".into(),
            umask: 0o22,
            open_files: None,
            not_after: Uptime::NEVER,
            deadline: Deadline::None,
            max_output: 1 << 20,
        }))
    };
    let mut n = 0;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let pid = w.pid();
    let rss = || {
        std::fs::read_to_string(format!("/proc/{pid}/status"))
            .unwrap()
            .lines()
            .filter(|l| l.starts_with("VmRSS") || l.starts_with("Rss") || l.starts_with("VmHWM"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    println!("idle {}", rss());
    for _ in 0..idle {
        n += 1;
        w.send(&launch(n, &["sleep", "1000"])).unwrap();
    }
    for _ in 0..idle {
        w.notice().await.unwrap();
    }
    let t = std::time::Instant::now();
    let total = 5000u64;
    let (mut started, mut ended) = (0, 0);
    for _ in 0..8 {
        n += 1;
        started += 1;
        w.send(&launch(n, &["/bin/true"])).unwrap();
    }
    while ended < total {
        if let Notice::Ended(_) = w.notice().await.unwrap() {
            ended += 1;
            if started < total {
                started += 1;
                n += 1;
                w.send(&launch(n, &["/bin/true"])).unwrap();
            }
        }
    }
    println!(
        "{:.0}/s  {}  load {}",
        total as f64 / t.elapsed().as_secs_f64(),
        rss(),
        std::fs::read_to_string("/proc/loadavg").unwrap()
    );
    let t = std::time::Instant::now();
    println!("{:?} killed {idle} in {:?}", w.close().await, t.elapsed());
}
