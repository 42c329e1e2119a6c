//! What the help and the manual pages say about each command besides its options: examples, exit codes, files.
//!
//! Each command has one entry here. [`command`] is the command line with these texts; it is what the program parses.

use clap::{Command, CommandFactory as _};

use super::Cli;

/// What there is to know about a command besides its options.
#[derive(Debug)]
pub struct Guide {
    pub command: &'static str,
    /// Lines for a shell, each with what it does.
    pub examples: &'static [(&'static str, &'static str)],
    /// Exit codes with their meanings. Every command ends with 0 on success and with 2 on wrong usage.
    pub exits: &'static [(&'static str, &'static str)],
    /// Files with their meanings.
    pub files: &'static [(&'static str, &'static str)],
    /// Manual pages, as `name(section)`.
    pub see_also: &'static [&'static str],
}

pub const FINE: (&str, &str) = ("0", "success");
pub const USAGE: (&str, &str) = ("2", "wrong usage: options, arguments or environment");

const UNWRITABLE: (&str, &str) = ("1", "the result cannot be written");
const REFUSED: (&str, &str) = ("1", "the node refused the request");
const NO_SUCH_JOB: (&str, &str) = ("2", "wrong usage, or there is no such job");
const NO_SUCH_RUN: (&str, &str) = ("2", "wrong usage, or there is no such run");
const NO_NODE: (&str, &str) = ("69", "no node can be reached, or it cannot reach the service or a leader");
const NO_SERVERS: (&str, &str) = ("69", "the coordination service cannot be reached");
const BAD_JOBS: (&str, &str) = ("78", "the jobs file is invalid or cannot be read");
const BAD_SETTINGS: (&str, &str) = ("78", "a file with settings or credentials cannot be used");
const TOO_LONG: (&str, &str) = ("75", "it took longer than --timeout");

const JOBS: (&str, &str) = ("/etc/cronkeeper/jobs.yaml", "the jobs; see jobs.yaml(5)");
const SETTINGS: (&str, &str) = ("/etc/cronkeeper/cronkeeper.env", "the settings of the service");
const STATE: (&str, &str) =
    ("/var/lib/cronkeeper", "the state of the node: its runs, their output, its copy of the history");
const SOCKET: (&str, &str) =
    ("/run/cronkeeper/api.sock", "the socket of the node; root and the group cronkeeper may use it");

/// One entry for each command, in the order of the help.
pub const GUIDES: &[Guide] = &[
    Guide {
        command: "run",
        examples: &[
            ("cronkeeper run --jobs jobs.yaml", "Run the jobs on this host alone, without a service"),
            (
                "cronkeeper run --zookeeper zk1:2181,zk2:2181,zk3:2181",
                "Take part in the cluster that uses these servers, with the jobs in /etc/cronkeeper/jobs.yaml",
            ),
            (
                "cronkeeper run --zookeeper zk1:2181,zk2:2181/cron --drain-timeout 5m",
                "The same below the path /cron; when the node is stopped, running jobs get five minutes to finish",
            ),
            (
                "cronkeeper run --postgres 'host=db1,db2 dbname=ops user=cronkeeper'",
                "Take part in the cluster in this PostgreSQL database",
            ),
            (
                "cronkeeper run --etcd http://e1:2379,http://e2:2379,http://e3:2379/cronkeeper",
                "Take part in the cluster below this prefix in etcd",
            ),
            ("cronkeeper run --redis redis://r1:6379/0", "Take part in the cluster in this Redis database"),
        ],
        exits: &[
            ("0", "the node was asked to stop, and has stopped"),
            ("1", "the node cannot continue"),
            USAGE,
            ("78", "the configuration cannot be used, or the node's name is in use; a restart does not help"),
        ],
        files: &[JOBS, SETTINGS, STATE, SOCKET],
        see_also: &[
            "cronkeeper-check(8)",
            "cronkeeper-status(8)",
            "cronkeeper-release(8)",
            "jobs.yaml(5)",
            "systemd.service(5)",
        ],
    },
    Guide {
        command: "check",
        examples: &[
            ("cronkeeper check", "Check the jobs of this host"),
            ("cronkeeper check jobs.yaml", "Check a file before you copy it to the hosts"),
            (
                "cronkeeper check --service",
                "Check whether a node of this host could use the service that /etc/cronkeeper/cronkeeper.env names",
            ),
        ],
        exits: &[
            ("0", "the jobs are valid, or the service can be used; there may be warnings"),
            UNWRITABLE,
            USAGE,
            NO_SERVERS,
            ("78", "the jobs file is invalid or cannot be read, or the service cannot be used until somebody acts"),
        ],
        files: &[JOBS, SETTINGS],
        see_also: &["cronkeeper-next(8)", "jobs.yaml(5)"],
    },
    Guide {
        command: "next",
        examples: &[
            ("cronkeeper next", "When each job is due next"),
            ("cronkeeper next nightly-backup -n 10", "The next ten times of one job"),
            (
                "cronkeeper next --schedule '30 2 * * Mon-Fri' --timezone Europe/Berlin",
                "What an expression means, in words and times",
            ),
        ],
        exits: &[FINE, UNWRITABLE, ("2", "wrong usage, an invalid expression, or there is no such job"), BAD_JOBS],
        files: &[JOBS],
        see_also: &["cronkeeper-check(8)", "jobs.yaml(5)"],
    },
    Guide {
        command: "status",
        examples: &[
            ("cronkeeper status", "Who leads, which nodes are there, and how the jobs are"),
            ("cronkeeper status --failing --watch", "Only jobs with a problem, refreshed every two seconds"),
            ("cronkeeper status --check", "For monitoring: what is wrong, and exit code 1 if something is"),
        ],
        exits: &[
            FINE,
            (
                "1",
                "--check: the node is not ready, nobody leads, the jobs file was rejected, or a job's mark is in the future",
            ),
            NO_SUCH_JOB,
            NO_NODE,
        ],
        files: &[SOCKET],
        see_also: &["cronkeeper-history(8)", "cronkeeper-logs(8)"],
    },
    Guide {
        command: "nodes",
        examples: &[
            ("cronkeeper nodes", "The labels of each node, and how many runs it has"),
            ("cronkeeper nodes --json", "The same for programs"),
        ],
        exits: &[FINE, REFUSED, USAGE, NO_NODE],
        files: &[SOCKET],
        see_also: &["cronkeeper-status(8)", "cronkeeper-drain(8)", "jobs.yaml(5)"],
    },
    Guide {
        command: "history",
        examples: &[
            ("cronkeeper history", "The last 20 runs and skips"),
            (
                "cronkeeper history nightly-backup --failed --since 7d --output",
                "One job's failures in the last week, with the end of their output",
            ),
            ("cronkeeper history --node host-a --csv -n 1000", "What ran on one host, as a table for other programs"),
        ],
        exits: &[
            FINE,
            (
                "1",
                "the node refused the request; or with --failed, --outcome, --node, --since or --until, records may be missing, and stderr says which",
            ),
            NO_SUCH_JOB,
            NO_NODE,
        ],
        files: &[SOCKET],
        see_also: &["cronkeeper-logs(8)", "cronkeeper-status(8)"],
    },
    Guide {
        command: "logs",
        examples: &[
            ("cronkeeper logs nightly-backup", "The output of a job's newest run"),
            ("cronkeeper logs nightly-backup -f --timestamps", "The same while it runs, with the time of each line"),
        ],
        exits: &[
            FINE,
            ("1", "part of the output is missing, the run is unknown, or it has several shares and you must name one"),
            NO_SUCH_RUN,
            NO_NODE,
        ],
        files: &[SOCKET, ("/var/lib/cronkeeper/output", "the kept output of this node's runs")],
        see_also: &["cronkeeper-history(8)", "cronkeeper-trigger(8)"],
    },
    Guide {
        command: "trigger",
        examples: &[
            ("cronkeeper trigger nightly-backup", "Run a job now, and print the id of the run"),
            ("cronkeeper trigger nightly-backup --wait", "Show its output too, and end with its exit code"),
            (
                "cronkeeper trigger load --env REGION=eu --scheduled-at 2026-11-19T02:30:00Z",
                "Run the job for another day, with a variable that it lists under `parameters`",
            ),
            (
                "cronkeeper trigger rotate-logs --on host-b --on host-c --wait",
                "Run a job with `run_on: any` or `every` on these nodes, and end with the worst exit code",
            ),
        ],
        exits: &[
            FINE,
            (
                "1",
                "the node refused the request; --wait: the run has no exit code, for example because it was killed \
                 before it began",
            ),
            NO_SUCH_JOB,
            NO_NODE,
            ("75", "--wait: the run or one of its shares was skipped, and none failed"),
            (
                "126, 127",
                "--wait: the job could not be started: its environment file or a secret is missing, or its program does \
                 not exist",
            ),
            ("130", "--wait: interrupted; the run continues"),
            ("other", "--wait: the exit code of the job; 124 if it timed out, 128 + signal if a signal ended it"),
        ],
        files: &[SOCKET],
        see_also: &["cronkeeper-exec(8)", "cronkeeper-kill(8)", "cronkeeper-logs(8)"],
    },
    Guide {
        command: "pause",
        examples: &[
            (
                "cronkeeper pause nightly-backup --reason 'the disk is being replaced'",
                "Skip the job on all nodes until it is resumed",
            ),
            ("cronkeeper pause 'backup-*' --for 2h", "Skip these jobs for two hours"),
            (
                "cronkeeper pause --all --for 30m --wait",
                "Before a deployment: pause everything, and return once \
                nothing runs",
            ),
        ],
        exits: &[
            FINE,
            (
                "1",
                "the node refused the request; --wait: the pause ended before it was certain that no run was in flight",
            ),
            NO_SUCH_JOB,
            NO_NODE,
        ],
        files: &[SOCKET],
        see_also: &["cronkeeper-resume(8)", "cronkeeper-status(8)"],
    },
    Guide {
        command: "resume",
        examples: &[("cronkeeper resume nightly-backup", "Run the job again from its next time on")],
        exits: &[FINE, REFUSED, NO_SUCH_JOB, NO_NODE],
        files: &[SOCKET],
        see_also: &["cronkeeper-pause(8)"],
    },
    Guide {
        command: "recount",
        examples: &[(
            "cronkeeper recount nightly-backup",
            "Once the clock is correct again: run the job at its next time, instead of only after the time that the \
             clock showed",
        )],
        exits: &[
            FINE,
            (
                "1",
                "the job is not silent, or the history does not show all that ran while the clock was ahead; \
                nothing has changed",
            ),
            NO_SUCH_JOB,
            NO_NODE,
        ],
        files: &[SOCKET],
        see_also: &["cronkeeper-status(8)", "cronkeeper-history(8)", "cronkeeper-trigger(8)"],
    },
    Guide {
        command: "handover",
        examples: &[
            ("cronkeeper handover --wait", "Hand leadership to the next node in line, and print which it is"),
            ("cronkeeper handover --to host-b", "Hand leadership to this node"),
        ],
        exits: &[FINE, ("1", "nobody leads, or the other node cannot take over"), USAGE, NO_NODE],
        files: &[SOCKET],
        see_also: &["cronkeeper-drain(8)", "cronkeeper-status(8)"],
    },
    Guide {
        command: "drain",
        examples: &[
            (
                "cronkeeper drain --wait",
                "Keep the node of this host from leading; return once none of its runs is in flight",
            ),
            ("cronkeeper drain host-b --reason 'new disks'", "The same for another node, without waiting"),
        ],
        exits: &[FINE, REFUSED, USAGE, NO_NODE],
        files: &[SOCKET],
        see_also: &["cronkeeper-undrain(8)", "cronkeeper-status(8)"],
    },
    Guide {
        command: "undrain",
        examples: &[("cronkeeper undrain host-b", "Let this node lead again")],
        exits: &[FINE, REFUSED, USAGE, NO_NODE],
        files: &[SOCKET],
        see_also: &["cronkeeper-drain(8)"],
    },
    Guide {
        command: "notify",
        examples: &[
            ("cronkeeper notify test", "Send a test message to every channel of this host's jobs file"),
            ("cronkeeper notify test ops --jobs jobs.yaml", "Try one channel before the file is copied to the hosts"),
        ],
        exits: &[
            ("0", "the service of each channel has taken the message"),
            ("1", "a message was not delivered, or the result cannot be written"),
            ("2", "wrong usage, or there is no such channel"),
            BAD_JOBS,
        ],
        files: &[JOBS],
        see_also: &["cronkeeper-check(8)", "jobs.yaml(5)"],
    },
    Guide {
        command: "forget",
        examples: &[("cronkeeper forget host-b", "This host is gone for good: jobs on every node stop waiting for it")],
        exits: &[FINE, REFUSED, USAGE, NO_NODE],
        files: &[SOCKET],
        see_also: &["cronkeeper-nodes(8)", "cronkeeper-drain(8)"],
    },
    Guide {
        command: "kill",
        examples: &[
            ("cronkeeper kill nightly-backup.20261120T023000Z", "End this run as its timeout would"),
            (
                "cronkeeper kill nightly-backup.20261120T023000Z --force",
                "Record it as ended although its host cannot be reached",
            ),
            (
                "cronkeeper kill rotate-logs.20261120T000000Z",
                "End a job's run on every node: all shares that are running",
            ),
        ],
        exits: &[FINE, REFUSED, NO_SUCH_RUN, NO_NODE],
        files: &[SOCKET],
        see_also: &["cronkeeper-history(8)", "cronkeeper-status(8)"],
    },
    Guide {
        command: "exec",
        examples: &[(
            "cronkeeper exec nightly-backup --jobs jobs.yaml",
            "Try out a job before you put it on the \
            hosts",
        )],
        exits: &[
            FINE,
            ("1", "the job cannot be run"),
            NO_SUCH_JOB,
            BAD_JOBS,
            ("124", "the job timed out"),
            (
                "126, 127",
                "it could not be started: its environment file or a secret is missing, or its program does not exist",
            ),
            ("other", "the exit code of the job; 128 + signal if a signal ended it"),
        ],
        files: &[JOBS],
        see_also: &["cronkeeper-trigger(8)", "jobs.yaml(5)"],
    },
    Guide {
        command: "lock",
        examples: &[
            (
                "cronkeeper lock /locks/orders -- ./import-orders",
                "Run a program that must not run at the same time as any other holder of this lock",
            ),
            ("cronkeeper lock /locks/orders --timeout 0s -- ./import-orders", "The same, but do not wait for the lock"),
            ("cronkeeper lock /locks/database --permits 3 -- ./report", "At most three at a time"),
            ("cronkeeper lock --file /run/lock/orders -- ./import-orders", "On this host only, without a service"),
        ],
        exits: &[
            FINE,
            ("1", "the lock cannot be used"),
            USAGE,
            NO_SERVERS,
            ("75", "the lock was not free within --timeout"),
            BAD_SETTINGS,
            ("124", "the command was stopped at the end of --hold"),
            ("126, 127", "the command cannot be executed, or does not exist"),
            ("137", "the lock was lost, and the command was killed"),
            ("other", "the exit code of the command; 128 + signal if a signal ended it"),
        ],
        files: &[SETTINGS],
        see_also: &["cronkeeper-locks(8)", "cronkeeper-latch(8)", "cronkeeper-barrier(8)", "flock(1)"],
    },
    Guide {
        command: "locks",
        examples: &[
            ("cronkeeper locks", "All locks, with their holders and who waits"),
            ("cronkeeper locks /locks/orders --json", "One of them, for programs"),
        ],
        exits: &[FINE, ("1", "the locks cannot be read"), USAGE, NO_SERVERS, BAD_SETTINGS],
        files: &[SETTINGS],
        see_also: &["cronkeeper-lock(8)"],
    },
    Guide {
        command: "latch",
        examples: &[
            (
                "cronkeeper latch /latches/deploy-42 --count 3 down",
                "Count once: on each of three hosts, when it is ready",
            ),
            ("cronkeeper latch /latches/deploy-42 --count 3 wait --timeout 10m", "Wait until all three have counted"),
            ("cronkeeper latch /latches/deploy-42 --reset", "Remove it"),
        ],
        exits: &[FINE, ("1", "the latch cannot be used"), USAGE, NO_SERVERS, TOO_LONG, BAD_SETTINGS],
        files: &[SETTINGS],
        see_also: &["cronkeeper-barrier(8)", "cronkeeper-lock(8)"],
    },
    Guide {
        command: "barrier",
        examples: &[(
            "cronkeeper barrier /barriers/nightly --parties 3 --timeout 10m",
            "On three hosts: continue when all three have arrived",
        )],
        exits: &[FINE, ("1", "the barrier cannot be used"), USAGE, NO_SERVERS, TOO_LONG, BAD_SETTINGS],
        files: &[SETTINGS],
        see_also: &["cronkeeper-latch(8)", "cronkeeper-lock(8)"],
    },
    Guide {
        command: "release",
        examples: &[(
            "cronkeeper release --zookeeper zk1:2181,zk2:2181,zk3:2181",
            "After the node on this host has died: let another node lead at once, and end the runs that are CUT OFF \
             here",
        )],
        exits: &[
            ("0", "released, or there was nothing to release, or the session timeout will release it"),
            ("1", "the node is still running, or a process of its jobs does not die"),
            USAGE,
            ("78", "the state directory or the settings cannot be used"),
        ],
        files: &[STATE],
        see_also: &["cronkeeper-run(8)", "systemd.service(5)"],
    },
    Guide {
        command: "import",
        examples: &[
            ("crontab -l | cronkeeper import -", "Convert the crontab of this user"),
            (
                "cronkeeper import --system /etc/crontab > jobs.yaml",
                "Convert a system crontab, with a user in each line",
            ),
        ],
        exits: &[
            ("0", "converted; stderr names the lines that could not be converted"),
            UNWRITABLE,
            ("2", "wrong usage, or an unknown time zone"),
            ("78", "the file cannot be read or is not a crontab"),
        ],
        files: &[],
        see_also: &["crontab(5)", "cronkeeper-check(8)", "jobs.yaml(5)"],
    },
    Guide {
        command: "schema",
        examples: &[
            ("cronkeeper schema > jobs.schema.json", "Write the JSON Schema of jobs.yaml, for an editor"),
            (
                "cronkeeper schema postgres | psql --single-transaction ops",
                "Create a cluster's tables as the database's owner; then grant the nodes' user what it needs",
            ),
        ],
        exits: &[FINE, UNWRITABLE, USAGE],
        files: &[],
        see_also: &["cronkeeper-check(8)", "jobs.yaml(5)"],
    },
    Guide {
        command: "token",
        examples: &[
            ("cronkeeper token alice --role operate", "Make a token for Alice, who may also run, pause and kill"),
            (
                "cronkeeper token grafana --role read --json",
                "The same for a program that only reads, as JSON: the token, and the line for the nodes",
            ),
            (
                "cronkeeper token ops --role admin --of /etc/cronkeeper/token",
                "The line of a token that is in use already; clients need not change it",
            ),
        ],
        exits: &[FINE, UNWRITABLE, USAGE, ("78", "the file of --of cannot be used, or its token is too short")],
        files: &[],
        see_also: &["cronkeeper-run(8)"],
    },
    Guide {
        command: "completions",
        examples: &[
            ("cronkeeper completions bash > /etc/bash_completion.d/cronkeeper", "For bash, for all users"),
            ("cronkeeper completions fish > ~/.config/fish/completions/cronkeeper.fish", "For fish, for this user"),
        ],
        exits: &[FINE, UNWRITABLE, USAGE],
        files: &[],
        see_also: &["bash(1)", "zsh(1)", "fish(1)"],
    },
    Guide {
        command: "man",
        examples: &[
            ("cronkeeper man | man -l -", "Read about all commands on one page"),
            ("cronkeeper man --all man", "Write a page for each command, and jobs.yaml(5), into the directory man"),
        ],
        exits: &[FINE, ("1", "a page cannot be written"), USAGE],
        files: &[],
        see_also: &["man(1)"],
    },
];

/// The entry of a command.
pub fn of(command: &str) -> Option<&'static Guide> {
    GUIDES.iter().find(|guide| guide.command == command)
}

/// The command line: options and commands, each with its examples and exit codes at the end of its help.
pub fn command() -> Command {
    Cli::command().mut_subcommands(|command| match of(command.get_name()) {
        Some(guide) => command.after_help(guide.after_help()),
        None => command,
    })
}

impl Guide {
    fn after_help(&self) -> String {
        let examples = self.examples.iter().map(|(line, what)| format!("  {line}\n      {what}\n"));
        let width = self.exits.iter().map(|(code, _)| code.len()).max().unwrap_or_default();
        let exits = self.exits.iter().map(|(code, meaning)| format!("  {code:width$}  {meaning}\n"));
        let text = format!("Examples:\n{}\nExit codes:\n{}", examples.collect::<String>(), exits.collect::<String>());
        text.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command as Process;

    use clap::error::ErrorKind;

    use super::*;
    use crate::cli::Exit;
    use crate::cli::tests::typed;

    /// The words of every call of cronkeeper in a line, as a shell splits them; the rest of the line is not executed.
    fn words(line: &str) -> Vec<String> {
        let calls = line.split(" | ").filter(|part| part.starts_with("cronkeeper "));
        let call =
            calls.map(|part| part.split(" > ").next().unwrap_or(part)).next().expect("an example calls cronkeeper");
        let script = format!("cronkeeper() {{ printf '%s\\n' cronkeeper \"$@\"; }}; {call}");
        let output = Process::new("sh").args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{line}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn every_command_has_examples_and_exit_codes_and_nothing_else_has() {
        let command = Cli::command();
        let commands: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        let guides: Vec<&str> = GUIDES.iter().map(|guide| guide.command).collect();
        assert_eq!(guides, commands, "in the order of the help");
        for guide in GUIDES {
            assert!(!guide.examples.is_empty(), "{}", guide.command);
            for code in ["0", "2"] {
                assert!(guide.exits.iter().any(|(named, _)| *named == code), "{}: {code}", guide.command);
            }
        }
    }

    #[test]
    fn the_examples_can_be_typed() {
        for (guide, (line, _)) in GUIDES.iter().flat_map(|guide| guide.examples.iter().map(move |line| (guide, line))) {
            let words = words(line);
            assert_eq!(words[1], guide.command, "{line}");
            if let Err(error) = command().try_get_matches_from(&words) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn the_pages_that_are_named_exist() {
        for name in GUIDES.iter().flat_map(|guide| guide.see_also) {
            let Some(command) = name.strip_prefix("cronkeeper-") else { continue };
            assert!(of(command.trim_end_matches("(8)")).is_some(), "{name}");
        }
    }

    #[test]
    fn the_help_of_release_says_what_it_needs_and_what_it_remedies() {
        let mut command = command();
        let help =
            command.find_subcommand_mut("release").expect("there is such a command").render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in
            ["the same --zookeeper, --node and --state-dir as the daemon", "`cronkeeper status` shows as CUT OFF"]
        {
            assert!(help.contains(part), "{help}");
        }
    }

    #[test]
    fn help_of_a_command_ends_with_its_examples_and_exit_codes() {
        for guide in GUIDES {
            let (exit, out, _) = typed(&["help", guide.command], &[]);
            assert_eq!(exit, Exit::Fine);
            assert_eq!(out, typed(&[guide.command, "--help"], &[]).1);
            let (_, end) = out.split_once("\nExamples:\n").unwrap_or_else(|| panic!("{out}"));
            assert!(end.contains("\nExit codes:\n"), "{out}");
            assert!(guide.examples.iter().all(|(line, _)| out.contains(line)), "{out}");
        }
        let unknown = command().try_get_matches_from(["cronkeeper", "help", "chekc"]).unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::InvalidSubcommand);
    }
}
