//! Environments of gigabytes: any process can have one, without special rights and almost without memory.

use nix::libc;
use rustix::process::Signal;

use super::{Host, Known, WAYS, quoted, run_now};
use crate::solo::fixture::{kib, leading, warden_of};
use crate::support::node::Spec;
use crate::support::{Facility, LONG, skipped};

/// Perl code that gives its process an environment of `bytes` zeros by prctl(PR_SET_MM, PR_SET_MM_MAP), if the kernel
/// allows it.
pub fn huge(bytes: u64) -> String {
    let (mmap, prctl) = (libc::SYS_mmap, libc::SYS_prctl);
    let (option, which) = (libc::PR_SET_MM, libc::PR_SET_MM_MAP);
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    format!(
        r#"
        sub huge {{
            my $bytes = {bytes};
            syscall({mmap}, 0, $bytes, 3, {anonymous}, -1, 0);
            my ($at, $brk);
            open(my $maps, "<", "/proc/self/maps") or die;
            while (<$maps>) {{
                my ($from, $to) = map hex, /^(\w+)-(\w+)/;
                $at = $to - $bytes if $to - $from >= $bytes;
                $brk = $to if /heap/;
            }}
            open(my $stat, "<", "/proc/self/stat") or die;
            my $line = <$stat>;
            $line =~ s/.*\) //;
            my @fields = split / /, $line;
            my @ours = (@fields[23, 24, 42, 43, 44], $brk, @fields[25, 45, 46], $at, $at + $bytes, 0, 0, 0xffffffff);
            my $map = pack("Q12 L2", @ours);
            return syscall({prctl}, {option}, {which}, $map, length $map, 0) == 0;
        }}
        "#
    )
}

/// Number of orphans, each in a session of its own, and the length of their environments.
const ORPHANS: usize = 8;
const BYTES: u64 = 512 << 20;

/// A job that ends when all orphans are ready.
fn breeder() -> String {
    let setsid = libc::SYS_setsid;
    let huge = huge(BYTES);
    format!(
        r#"{huge}
        pipe(my $reader, my $writer);
        for (1..{ORPHANS}) {{
            next if fork;
            syscall({setsid});
            syswrite($writer, huge() ? "y" : "n");
            close STDOUT; close STDERR; close $writer;
            sleep 1000;
            exit;
        }}
        for (1..{ORPHANS}) {{ sysread($reader, my $how, 1); if ($how ne "y") {{ print "refused\n"; exit }} }}
        print "all stand\n";
        "#
    )
}

/// A job of the same user runs beside it, so that the owner of the orphans is unclear.
fn jobs() -> String {
    let breeder = quoted(&breeder());
    format!(
        "jobs:
  holder: {{schedule: '@yearly', user: nobody, command: [sleep, '1000']}}
  breeder: {{schedule: '@yearly', user: nobody, command: [perl, -e, {breeder}]}}
"
    )
}

fn bytes_read(pid: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

fn assert_the_warden_takes_no_notice(host: &Host, spec: &Spec) {
    let node = leading(spec);
    let warden = warden_of(&node);
    run_now(&node, "holder");
    if !host.is_as_wanted(spec) {
        return;
    }
    let before = bytes_read(warden);
    let breeder = run_now(&node, "breeder");
    let line = node.await_where("run.output", LONG, |event| event.text("run") == breeder);
    if line.text("line") != "all stand" {
        return skipped(Facility::Kernel, "the kernel lets no process say where its environment is");
    }
    let end = node.await_where("run.finished", LONG, |event| event.text("run") == breeder);
    assert_eq!(end.text("outcome"), "success");
    // By environment alone, they may belong to one of two runs of this user, and the warden reads each of them once.
    if host.known != Known::Environment {
        assert_eq!(end.number("leftovers"), Some(ORPHANS as i64));
        assert!(bytes_read(warden) - before < BYTES / 16, "no environment is read");
    }
    assert!(kib(warden, "VmHWM") < 64 << 10, "{} KiB at most", kib(warden, "VmHWM"));
    node.signal(Signal::TERM);
    // Two signals at once can be received as one.
    node.await_event("node.draining", LONG);
    node.signal(Signal::TERM);
    assert_eq!(node.wait_exit(LONG).code(), Some(0));
    assert!(node.events().named("warden.silent").is_empty());
}

#[test]
fn what_a_job_puts_where_its_environment_was_costs_the_warden_neither_memory_nor_time() {
    for known in WAYS {
        let Some(host) = Host::new(known, "") else { continue };
        assert_the_warden_takes_no_notice(&host, &host.node().jobs(&jobs()));
    }
}
