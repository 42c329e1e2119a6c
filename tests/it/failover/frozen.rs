//! A state directory on a disk that does not respond: the node's loop is stalled, and everything else continues.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cluster::{
    Place, await_begun, give, in_line, job, jobs, living, node, once, run_id, shared, soon, token, usual,
};
use crate::support::scratch::Scratch;
use crate::support::witness::Witness;
use crate::support::{Facility, LONG, skipped, until};

/// A file system in a file, which can be frozen.
struct Disk {
    mounted: PathBuf,
    _scratch: Scratch,
}

/// A frozen disk, until dropped. Create it after the nodes that use it: a process that waits for the disk cannot be
/// killed.
struct Frozen<'d>(&'d Disk);

impl Disk {
    /// Absent if this machine cannot freeze a file system; the reason is printed.
    fn mount() -> Option<Self> {
        let scratch = Scratch::new("disk");
        let (image, mounted) = (scratch.path().join("image"), scratch.path().join("mounted"));
        std::fs::create_dir(&mounted).expect("a folder can be made");
        File::create(&image).and_then(|file| file.set_len(32 << 20)).expect("a file can be made");
        let is_made = run("mkfs.ext4", &["-q"], &image, None) && run("mount", &["-o", "loop"], &image, Some(&mounted));
        if !is_made {
            // Containers have root without loop devices.
            let lacks = if rustix::process::geteuid().is_root() { Facility::Kernel } else { Facility::Root };
            skipped(lacks, "only root can mount a file system to freeze, where there are loop devices");
        }
        is_made.then_some(Self { mounted, _scratch: scratch })
    }

    fn freeze(&self) -> Frozen<'_> {
        let frozen = Frozen(self);
        assert!(run("fsfreeze", &["-f"], &self.mounted, None));
        frozen
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &["-l"], &self.mounted, None);
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        run("fsfreeze", &["-u"], &self.0.mounted, None);
    }
}

fn run(program: &str, options: &[&str], path: &Path, onto: Option<&Path>) -> bool {
    let status = Command::new(program).args(options).arg(path).args(onto).status();
    status.is_ok_and(|status| status.success())
}

#[test]
fn a_leader_whose_disk_does_not_answer_leaves_its_place_and_then_its_runs_and_comes_back() {
    let Some(disk) = Disk::mount() else { return };
    let place = Place::on(shared());
    let witness = Witness::new();
    let state = disk.mounted.join("state");
    let [a, b] = in_line([usual(node("a", &place.connect()).state(&state)), usual(place.node("b"))]);
    let at = soon();
    let again = once("again", at, &witness.command(&["sleep", "600"]), "interrupted: rerun");
    give(&[&a, &b], &jobs(&[again, job("tick", "* * * * * *", &witness.command(&[]), "")]));
    ["again", "tick"].iter().for_each(|job| await_begun(&witness, job, 1));

    let frozen = disk.freeze();
    b.await_event("leader.elected", LONG);
    until("the next leader starts what is due", || witness.entries().iter().any(|entry| entry.token == token(&b)));
    // The node owns its runs while it is a member. Afterwards those that may run again are dead, and the leader begins
    // them.
    await_begun(&witness, "again", 2);
    assert_eq!(living(&witness, "again").len(), 1);
    let member = place.path(&format!("/cronkeeper/nodes/{}", a.name()));
    assert_eq!(place.zk.json(&member), None);

    drop(frozen);
    assert_eq!(a.await_event("leader.lost", LONG).text("reason"), "stalled");
    a.await_event("election.following", LONG);
    assert_eq!(place.zk.json(&member).map(|member| member["node"] == a.name()), Some(true));
    assert_eq!(place.running(&run_id("again", at)).map(|run| run["attempt"] == 2), Some(true));
    witness.assert_fine(&[]);
}
