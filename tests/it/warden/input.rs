//! The standard input of a job's process.

use cronkeeper_core::process::Exit;

use super::fixture::{Fixture, is_root, nobody};

#[tokio::test]
async fn a_process_reads_its_input_to_the_end() {
    let mut fixture = Fixture::new();
    let mut launch = fixture.sh("cat | wc -c; echo again: $(cat)");
    launch.input = "äöü\n".repeat(1000);
    assert_eq!(fixture.run(launch).await.exit, Exit::Code(0));
    assert_eq!(fixture.lines(), ["7000", "again:"]);
    fixture.close().await;
}

#[tokio::test]
async fn input_that_nobody_reads_delays_nothing() {
    let mut fixture = Fixture::new();
    let mut launch = fixture.sh("exec true");
    launch.input = "x".repeat(1 << 20);
    assert_eq!(fixture.run(launch).await.exit, Exit::Code(0));
    fixture.close().await;
}

#[tokio::test]
async fn the_job_of_another_user_can_read_its_input() {
    if !is_root() {
        return;
    }
    let mut fixture = Fixture::new();
    // Some programs open their input again by name.
    let mut launch = fixture.sh("cat; cat /dev/stdin");
    (launch.input, launch.directory, launch.user) = ("hello\n".into(), "/".into(), Some(nobody()));
    assert_eq!(fixture.run(launch).await.exit, Exit::Code(0));
    assert_eq!(fixture.lines(), ["hello", "hello"]);
    fixture.close().await;
}
