//! Both ends in one process, with pipes that show what is still open.

use rustix::event::{PollFd, PollFlags, poll};

use super::*;

/// A pipe. Reading from it finds the end of the file once nobody has the writing end open.
fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap()
}

fn is_closed(reading: &OwnedFd, within_ms: i64) -> bool {
    let timeout = rustix::time::Timespec { tv_sec: within_ms / 1000, tv_nsec: within_ms % 1000 * 1_000_000 };
    poll(&mut [PollFd::new(reading, PollFlags::IN)], Some(&timeout)).unwrap() > 0
}

const LONG: i64 = 60_000;

#[test]
fn what_is_deposited_stays_open_until_it_is_withdrawn() {
    let (custody, _thread) = model::start();
    let (reading, writing) = pipe();
    let (other_reading, other) = pipe();
    let deposit = custody.deposit(&[writing.as_fd()]).unwrap();
    let _stays = custody.deposit(&[other.as_fd()]).unwrap();
    drop((writing, other));
    assert!(!is_closed(&reading, 0));
    deposit.withdraw();
    assert!(is_closed(&reading, LONG));
    assert!(!is_closed(&other_reading, 0));
}

#[test]
fn what_the_daemon_forgets_is_kept_until_the_warden_ends() {
    let (custody, thread) = model::start();
    let (reading, writing) = pipe();
    drop(custody.deposit(&[writing.as_fd()]).unwrap());
    drop(writing);
    // The answer to a second deposit proves that the end of the first one's line was read.
    custody.deposit(&[reading.as_fd()]).unwrap().withdraw();
    assert!(!is_closed(&reading, 0));
    drop(custody);
    thread.join().unwrap();
    assert!(is_closed(&reading, LONG));
}

#[test]
fn a_warden_that_is_gone_or_has_no_room_takes_nothing() {
    let (_reading, writing) = pipe();
    assert!(model::gone().deposit(&[writing.as_fd()]).is_err());
    let (custody, _thread) = model::start_with(2);
    assert!(custody.deposit(&[writing.as_fd()]).is_err());
    let (custody, _thread) = model::start();
    assert!(custody.deposit(&vec![writing.as_fd(); MOST]).is_err());
    assert!(custody.deposit(&vec![writing.as_fd(); MOST - 1]).is_ok());
}

#[test]
fn a_warden_that_dies_unread_answers_too() {
    let (custody, theirs) = WardenCustody::pair().unwrap();
    let (reading, writing) = pipe();
    let waiting = std::thread::spawn(move || custody.deposit(&[writing.as_fd()]).map(drop));
    poll(&mut [PollFd::new(&theirs, PollFlags::IN)], None).unwrap();
    assert!(!is_closed(&reading, 0));
    drop(theirs);
    assert!(waiting.join().unwrap().is_err());
    assert!(is_closed(&reading, LONG));
}

#[test]
fn the_descriptors_travel_ahead_of_all_orders() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    assert!(take_descriptors(theirs.as_fd()).is_empty());
    let (_custody, end) = WardenCustody::pair().unwrap();
    send_descriptors(&ours, &[end.as_fd(), ours.as_fd()]).unwrap();
    (&ours).write_all(b"orders").unwrap();
    assert_eq!(take_descriptors(theirs.as_fd()).len(), 2);
    assert!(take_descriptors(theirs.as_fd()).is_empty());
    let mut rest = [0; 6];
    (&theirs).read_exact(&mut rest).unwrap();
    assert_eq!(&rest, b"orders");
}

mod model {
    //! A thread that keeps descriptors as the warden does, until the daemon's end is dropped.

    use std::thread::{self, JoinHandle};

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// Starts the thread. It dies with the last clone of the daemon's end, and then closes what it keeps.
    pub fn start() -> (WardenCustody, JoinHandle<()>) {
        start_with(RawFd::MAX)
    }

    /// The daemon's end of a warden that is gone.
    pub fn gone() -> WardenCustody {
        WardenCustody::pair().unwrap().0
    }

    pub(super) fn start_with(last: RawFd) -> (WardenCustody, JoinHandle<()>) {
        let (custody, theirs) = WardenCustody::pair().unwrap();
        let mut vault = Vault::new(Some(theirs), last).unwrap();
        let thread = thread::spawn(move || {
            while vault.socket.is_some() {
                poll(&mut [PollFd::new(&vault, PollFlags::IN)], None).unwrap();
                vault.turn().unwrap();
            }
        });
        (custody, thread)
    }
}
