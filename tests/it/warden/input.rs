//! What is handed to a process on its standard input.

use cronkeeper::warden::wire::Exit;

use super::bench::{Bench, is_root, nobody};

#[tokio::test]
async fn a_process_reads_what_was_handed_over_and_then_the_end() {
    let mut bench = Bench::new();
    let mut launch = bench.sh("cat | wc -c; echo again: $(cat)");
    launch.input = "äöü\n".repeat(1000);
    assert_eq!(bench.run(launch).await.exit, Exit::Code(0));
    assert_eq!(bench.lines(), ["7000", "again:"]);
    bench.close().await;
}

#[tokio::test]
async fn input_that_nobody_reads_delays_nothing() {
    let mut bench = Bench::new();
    let mut launch = bench.sh("exec true");
    launch.input = "x".repeat(1 << 20);
    assert_eq!(bench.run(launch).await.exit, Exit::Code(0));
    bench.close().await;
}

#[tokio::test]
async fn the_job_of_another_user_can_read_its_input() {
    if !is_root() {
        return;
    }
    let mut bench = Bench::new();
    // Opened again by its name too, as some programs do.
    let mut launch = bench.sh("cat; cat /dev/stdin");
    (launch.input, launch.directory, launch.user) = ("hello\n".into(), "/".into(), Some(nobody()));
    assert_eq!(bench.run(launch).await.exit, Exit::Code(0));
    assert_eq!(bench.lines(), ["hello", "hello"]);
    bench.close().await;
}
