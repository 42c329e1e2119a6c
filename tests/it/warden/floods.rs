//! Floods of output: whatever some trees write, the starts and ends of others wait for little of it.

use std::fs;

use cronkeeper_core::process::{Exit, Notice, Order, TreeId};

use super::fixture::{Fixture, eventually, state};

/// Floods of empty, short, long and endless lines, and of characters that take much space in a text of JSON.
const FLOODS: [&str; 6] = [
    "exec yes ''",
    "exec yes",
    "exec yes '' >&2",
    "exec yes $(head -c 5000 /dev/zero | tr '\\0' x)",
    "exec tr '\\0' x </dev/zero",
    "exec cat /dev/zero",
];

/// The price of the output that may come before the end of another tree: the window, and the dearest piece, which is a
/// long line of control characters. See `window`.
const MOST: u64 = (64 << 10) + 6 * (64 << 10) + 1_000;

/// Starts floods without bounds.
async fn flood(fixture: &mut Fixture, scripts: &[&str]) -> Vec<TreeId> {
    let mut floods = Vec::new();
    for script in scripts {
        let mut launch = fixture.sh(script);
        launch.max_output = u64::MAX;
        floods.push(fixture.start(launch).await.0);
    }
    fixture.output.clear();
    floods
}

async fn end_all(mut fixture: Fixture, floods: &[TreeId]) {
    floods.iter().for_each(|&tree_id| fixture.order(Order::Kill { tree_id }));
    let mut left = floods.len();
    while left > 0 {
        left -= usize::from(matches!(fixture.notice().await, Notice::Ended(_)));
    }
    fixture.close().await;
}

/// Runs a tree beside floods, and reads nothing until it has ended. Returns the price of the output before the notice
/// of its end.
async fn cost_before_the_end(fixture: &mut Fixture) -> u64 {
    let own = fixture.directory.path().join("own");
    let launch = fixture.sh(&format!("echo done; echo $$ >{0}.new; mv {0}.new {0}", own.display()));
    fixture.order_start(&launch);
    let is_over = || fs::read_to_string(&own).is_ok_and(|pid| state(pid.trim().parse().unwrap()).is_none());
    eventually("the tree is reaped", is_over).await;
    fs::remove_file(&own).unwrap();
    let (mut cost, mut is_started, mut lines) = (0, false, Vec::new());
    loop {
        let notice = fixture.notice().await;
        cost += notice.output_cost();
        match notice {
            Notice::Started { tree_id, .. } => is_started |= tree_id == launch.tree_id,
            Notice::Output { tree_id, lines: more, .. } if tree_id == launch.tree_id => lines.extend(more),
            Notice::Ended(ending) => {
                assert_eq!((ending.tree_id, ending.exit), (launch.tree_id, Exit::Code(0)));
                assert_eq!((is_started, lines), (true, vec!["done".to_owned()]), "its notices are in order");
                return cost;
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn an_end_waits_for_little_output_of_another_tree() {
    for script in FLOODS {
        let mut fixture = Fixture::new();
        let floods = flood(&mut fixture, &[script]).await;
        for _ in 0..3 {
            let cost = cost_before_the_end(&mut fixture).await;
            assert!(cost <= MOST, "{script}: {cost}");
        }
        end_all(fixture, &floods).await;
    }
}

#[tokio::test]
async fn an_end_waits_for_no_more_output_of_ten_trees_than_of_one() {
    let mut fixture = Fixture::new();
    let ten: Vec<&str> = FLOODS.into_iter().cycle().take(10).collect();
    let floods = flood(&mut fixture, &ten).await;
    for _ in 0..3 {
        let cost = cost_before_the_end(&mut fixture).await;
        assert!(cost <= MOST, "{cost}");
    }
    end_all(fixture, &floods).await;
}

#[tokio::test]
async fn a_tree_that_ended_beside_floods_has_its_whole_output_before_its_end() {
    let mut fixture = Fixture::new();
    let floods = flood(&mut fixture, &FLOODS[..2]).await;
    let mut launch = fixture.sh("seq 100000; printf unfinished");
    launch.max_output = u64::MAX;
    fixture.order_start(&launch);
    let mut lines = Vec::new();
    loop {
        match fixture.notice().await {
            Notice::Output { tree_id, lines: more, .. } if tree_id == launch.tree_id => lines.extend(more),
            Notice::Ended(ending) => {
                assert_eq!((ending.tree_id, ending.dropped_bytes), (launch.tree_id, 0));
                break;
            }
            _ => {}
        }
    }
    assert_eq!((lines.len(), lines[99_999].as_str(), lines[100_000].as_str()), (100_001, "100000", "unfinished"));
    assert!((1..).zip(&lines[..100_000]).all(|(number, line): (u32, _)| *line == number.to_string()));
    end_all(fixture, &floods).await;
}

#[tokio::test]
async fn lines_that_arrive_together_share_a_notice_and_cost_so_much_that_they_take_little_space() {
    let mut fixture = Fixture::new();
    let launch = fixture.sh("yes '' | head -c 1000000");
    fixture.order_start(&launch);
    let (mut notices, mut lines, mut cost) = (0, 0, 0);
    let ending = loop {
        let notice = fixture.notice().await;
        cost += notice.output_cost();
        match notice {
            Notice::Output { lines: more, .. } => (notices, lines) = (notices + 1, lines + more.len() as u64),
            Notice::Ended(ending) => break ending,
            _ => {}
        }
    };
    assert_eq!(lines + ending.dropped_bytes, 1_000_000);
    assert!(cost <= 2 << 20 && lines > 10_000, "{lines} lines for {cost}");
    assert!(notices * 10 < lines, "{lines} lines in {notices} notices");
    fixture.close().await;
}
