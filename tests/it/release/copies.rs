//! A state directory that was copied, or written in another boot: nothing of a node that may be running is settled.

use std::path::Path;

use super::*;

/// Copies the state directory, as for another host or container.
fn copied(spec: &Spec) -> Scratch {
    let copy = Scratch::new("copy");
    for entry in std::fs::read_dir(spec.state_dir()).unwrap().map(Result::unwrap) {
        // The socket is not a regular file.
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    copy
}

/// A leader that runs the sleeper, with a copy of its state directory, and the run.
fn leader_and_copy(spec: &Spec) -> (Node, Scratch, String) {
    let node = spec.clone().jobs(SLEEPER).start();
    let run = node.await_event("run.started", LONG).text("run").to_owned();
    until("the process is noted", || {
        std::fs::read_to_string(spec.state_dir().join("journal")).unwrap().contains("\"started\"")
    });
    (node, copied(spec), run)
}

/// Asserts that the owner of a copied state directory has changed nothing of the living node.
async fn assert_untouched(node: &Node, connect: &str, run: &str) {
    assert!(is_in_flight(connect, run).await);
    assert!(history_of(connect, run).await.is_none());
    assert_eq!(node.job_processes().len(), 1);
    for name in ["leader.lost", "leader.resigned", "run.finished", "run.superseded"] {
        assert_eq!(node.events().named(name), [], "{name}");
    }
}

#[tokio::test]
async fn with_a_copy_of_a_living_nodes_directory_nothing_of_it_is_given_up() {
    let connect = shared();
    let spec = spec(&connect);
    let (node, copy, run) = leader_and_copy(&spec);
    // The first call rewrites the journal; the second one must recognize the copy all the same.
    for _ in 0..2 {
        assert_quiet(&release(&spec.clone().state(copy.path()), Some(&connect)));
    }
    assert_untouched(&node, &connect, &run).await;
}

/// As if a virtual machine was cloned and given a node name of its own.
#[tokio::test]
async fn a_node_on_a_copy_of_a_living_nodes_directory_follows_it_and_settles_nothing_of_it() {
    for boot in [None, Some("another-boot")] {
        let connect = shared();
        let spec = spec(&connect);
        let (node, copy, run) = leader_and_copy(&spec);
        boot.into_iter().for_each(|boot| set_boot(copy.path(), boot));
        let clone = self::spec(&connect).jobs(SLEEPER).state(copy.path()).start();
        clone.await_event("election.following", LONG);
        // The clone reports about the run before it requests anything else, and the skip comes later.
        let seen = node.events().len();
        node.await_after(seen, "run.skipped", LONG, |_| true);
        assert_untouched(&node, &connect, &run).await;
    }
}

/// Changes the recorded boot, as if the directory had been written in another boot of the kernel.
fn set_boot(state: &Path, boot: &str) {
    let own = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    for name in ["journal", "sessions.json"] {
        let text = std::fs::read_to_string(state.join(name)).unwrap();
        assert!(text.contains(own.trim()), "{name}: {text}");
        std::fs::write(state.join(name), text.replace(own.trim(), boot)).unwrap();
    }
}

#[tokio::test]
async fn after_a_boot_release_gives_nothing_up_and_the_node_ends_its_runs_once_its_name_is_free() {
    let connect = shared();
    let spec = Spec::new(CRONKEEPER, "node").zookeeper(&connect).option("--session-timeout", "4s");
    let (_killed, run) = killed(&spec);
    set_boot(&spec.state_dir(), "another-boot");
    assert_quiet(&release(&spec, Some(&connect)));
    let again = spec.clone().jobs("jobs: {}").start();
    let said = again.await_event("coordination.stalled", LONG);
    assert!(said.text("message").contains("waiting for the node name "), "{}", said.json());
    again.await_event("takeover.done", LONG);
    let end = history_of(&connect, &run).await.unwrap();
    assert_eq!((&end["outcome"], &end["reason"]), (&"interrupted".into(), &"node-died".into()));
}
