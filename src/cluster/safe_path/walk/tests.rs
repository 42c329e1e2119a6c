//! Tests of the rules: examples, and an independent model of what other users could change on the way.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const ME: u32 = 4;
const OWN_GROUP: u32 = 5;
const STRANGER: u32 = 7;

/// A file tree in memory; the first node is `/`.
#[derive(Clone, Debug)]
struct Memory(Vec<Node>);

#[derive(Clone, Debug)]
struct Node {
    facts: Facts,
    children: BTreeMap<&'static str, usize>,
    target: String,
}

impl FileTree for Memory {
    type Node = usize;

    fn root(&self) -> io::Result<usize> {
        Ok(0)
    }

    fn enter(&self, directory: &usize, name: &OsStr) -> io::Result<usize> {
        let name = name.to_str().expect("names in tests are UTF-8");
        self.0[*directory].children.get(name).copied().ok_or_else(|| Errno::NOENT.into())
    }

    fn facts(&self, node: &usize) -> io::Result<Facts> {
        Ok(self.0[*node].facts.clone())
    }

    fn target(&self, link: &usize) -> io::Result<PathBuf> {
        Ok(PathBuf::from(&self.0[*link].target))
    }

    fn is_private(&self, group: u32) -> bool {
        group == OWN_GROUP
    }
}

fn facts(kind: FileKind, owner: u32, mode: u32) -> Facts {
    Facts { kind, owner, group: 0, mode, links: 1, is_virtual: false, is_read_only: false }
}

fn node(facts: Facts) -> Node {
    Node { facts, children: BTreeMap::new(), target: String::new() }
}

impl Memory {
    fn new() -> Self {
        Self(vec![node(facts(FileKind::Directory, 0, 0o755))])
    }

    /// Adds a node; its directory must exist.
    fn with(mut self, path: &'static str, facts: Facts) -> Self {
        let (directory, name) = path.rsplit_once('/').expect("paths in tests are absolute");
        let directory = directory.split('/').skip(1).fold(0, |directory, name| self.0[directory].children[name]);
        let at = self.0.len();
        self.0[directory].children.insert(name, at);
        self.0.push(node(facts));
        self
    }

    fn directory(self, path: &'static str, owner: u32, mode: u32) -> Self {
        self.with(path, facts(FileKind::Directory, owner, mode))
    }

    fn file(self, path: &'static str, owner: u32, mode: u32) -> Self {
        self.with(path, facts(FileKind::File, owner, mode))
    }

    fn link(mut self, path: &'static str, owner: u32, target: &str) -> Self {
        self = self.with(path, facts(FileKind::Link, owner, 0o777));
        self.0.last_mut().expect("it was just added").target = target.to_owned();
        self
    }

    fn found(&self, path: &str, wanted: Wanted) -> Result<PathBuf, Refusal> {
        self.found_for(path, wanted, None)
    }

    fn found_for(&self, path: &str, wanted: Wanted, user: Option<u32>) -> Result<PathBuf, Refusal> {
        let rules = AccessRules { me: ME, user, are_only_links_checked: false };
        let resolved = walk(self, Path::new(path), &rules)?;
        resolved.check_last(self, &rules, &resolved.last().facts, wanted)?;
        Ok(resolved.path())
    }

    /// The resolved path, or the refused component and the reason.
    fn result(&self, path: &str) -> String {
        self.result_for(path, None)
    }

    /// The same for a job of this user.
    fn result_for(&self, path: &str, user: Option<u32>) -> String {
        match self.found_for(path, Wanted::Trusted, user) {
            Ok(path) => path.display().to_string(),
            Err(Refusal::Unsafe(found)) => format!("{}: {:?}", found.component.display(), found.fault),
            Err(Refusal::Io(error)) => format!("{:?}", error.kind()),
        }
    }
}

#[test]
fn every_directory_up_to_the_root_counts() {
    let tree =
        Memory::new().directory("/srv", 0, 0o755).directory("/srv/x", STRANGER, 0o755).file("/srv/x/f", 0, 0o644);
    assert_eq!(tree.result("/srv/x/f"), "/srv/x: ForeignOwner { owner: 7 }");
    let tree = Memory::new().directory("/srv", 0, 0o777).directory("/srv/x", 0, 0o755).file("/srv/x/f", 0, 0o644);
    assert_eq!(tree.result("/srv/x/f"), "/srv: AnybodyWrites { mode: 511 }");
    let tree = Memory::new().directory("/srv", ME, 0o750).directory("/srv/x", 0, 0o755).file("/srv/x/f", ME, 0o644);
    assert_eq!(tree.result("/srv/x/../x/./f"), "/srv/x/f");
    assert_eq!(tree.result("/srv/x"), "/srv/x");
    assert_eq!(tree.result("/../.."), "/");
    assert_eq!(
        [tree.result("/srv/y"), tree.result("/srv/x/f/.."), tree.result("/srv/x/f/g")],
        ["NotFound", "NotADirectory", "NotADirectory"]
    );
    let mut open = Memory::new();
    open.0[0].facts.mode = 0o777;
    assert_eq!(open.result("/"), "/: AnybodyWrites { mode: 511 }");
}

#[test]
fn the_user_of_a_job_is_given_his_own_files_only() {
    let tree = Memory::new()
        .directory("/home", 0, 0o755)
        .directory("/home/app", STRANGER, 0o700)
        .file("/home/app/env", STRANGER, 0o600)
        .file("/home/app/moved", 0, 0o600)
        .link("/home/app/link", STRANGER, "/etc/shadow")
        .link("/home/app/roots", 0, "env")
        .directory("/home/app/sub", 0, 0o755)
        .file("/home/app/sub/f", 0, 0o600)
        .directory("/home/app/open", STRANGER, 0o777)
        .file("/home/app/open/f", STRANGER, 0o600)
        .directory("/etc", 0, 0o755)
        .file("/etc/shadow", 0, 0o600)
        .file("/etc/env", STRANGER, 0o600)
        .link("/etc/link", 0, "/home/app/env")
        .directory("/tmp", 0, 0o1777)
        .file("/tmp/env", STRANGER, 0o600)
        .link("/tmp/link", STRANGER, "/etc/shadow");
    let of_user = |path: &str| tree.result_for(path, Some(STRANGER));
    for path in ["/home/app/env", "/etc/env", "/etc/shadow", "/tmp/env", "/home/app/../../etc/shadow"] {
        assert!(!of_user(path).contains(':'), "{}", of_user(path));
    }
    assert_eq!(of_user("/etc/link"), "/home/app/env");
    assert_eq!(of_user("/home/app/moved"), "/home/app/moved: NotOfUser { owner: 0, user: 7 }");
    assert_eq!(of_user("/home/app/sub/f"), "/home/app/sub/f: NotOfUser { owner: 0, user: 7 }");
    assert_eq!(of_user("/home/app/link"), "/home/app/link: Link");
    assert_eq!(of_user("/home/app/roots"), "/home/app/roots: Link");
    assert_eq!(of_user("/home/app/open/f"), "/home/app/open: AnybodyWrites { mode: 511 }");
    assert_eq!(of_user("/tmp/link"), "/tmp/link: ForeignLink { owner: 7 }");
    for path in ["/home/app/env", "/etc/env", "/tmp/env"] {
        assert!(tree.result_for(path, Some(STRANGER + 1)).contains("ForeignOwner { owner: 7 }"), "{path}");
    }
}

#[test]
fn own_files_in_a_sticky_directory_are_accepted() {
    let tree = Memory::new()
        .directory("/tmp", 0, 0o1777)
        .directory("/tmp/ours", ME, 0o700)
        .file("/tmp/ours/f", ME, 0o600)
        .directory("/tmp/theirs", STRANGER, 0o755)
        .file("/tmp/f", ME, 0o644)
        .link("/tmp/link", ME, "ours/f")
        .link("/tmp/strangers-link", STRANGER, "ours/f")
        .with("/tmp/planted", Facts { links: 2, ..facts(FileKind::File, 0, 0o644) });
    assert_eq!(
        [tree.result("/tmp/ours/f"), tree.result("/tmp/f"), tree.result("/tmp/link")],
        ["/tmp/ours/f", "/tmp/f", "/tmp/ours/f"]
    );
    assert_eq!(tree.result("/tmp/theirs"), "/tmp/theirs: ForeignOwner { owner: 7 }");
    assert_eq!(tree.result("/tmp/strangers-link"), "/tmp/strangers-link: ForeignLink { owner: 7 }");
    assert_eq!(tree.result("/tmp/planted"), "/tmp/planted: HardLinked { links: 2 }");
    assert_eq!(tree.result("/tmp"), "/tmp: AnybodyWrites { mode: 1023 }");
}

#[test]
fn the_directory_of_a_link_counts_and_every_component_of_its_target() {
    let tree = Memory::new()
        .directory("/etc", 0, 0o755)
        .link("/etc/jobs", 0, "/srv/x/f")
        .link("/etc/given", STRANGER, "real")
        .file("/etc/real", 0, 0o644)
        .directory("/srv", 0, 0o755)
        .directory("/srv/x", STRANGER, 0o755)
        .link("/srv/x/back", 0, "/etc/real")
        .link("/srv/turn", 0, "../srv/turn");
    assert_eq!(tree.result("/etc/jobs"), "/srv/x: ForeignOwner { owner: 7 }");
    assert_eq!(tree.result("/srv/x/back"), "/srv/x: ForeignOwner { owner: 7 }");
    assert_eq!(
        tree.result("/etc/given"),
        "/etc/real",
        "only a user who may write to the directory can have created it"
    );
    assert_eq!(tree.result("/srv/turn"), "FilesystemLoop");
}

#[test]
fn a_file_in_a_virtual_file_system_is_refused_whoever_owns_it() {
    let virtual_file = Facts { is_virtual: true, ..facts(FileKind::File, 0, 0o444) };
    let tree = Memory::new().directory("/proc", 0, 0o555).with("/proc/f", virtual_file).link("/f", 0, "proc/f");
    assert_eq!(tree.result("/f"), "/proc/f: OfKernel");
}

#[test]
fn the_volume_of_a_pod_is_accepted_where_it_is_mounted_read_only() {
    let volume = |is_read_only: bool, owner: u32| {
        let of = |kind, mode| Facts { is_read_only, ..facts(kind, owner, mode) };
        let mut tree = Memory::new()
            .directory("/etc", 0, 0o755)
            .with("/etc/cron", of(FileKind::Directory, 0o777))
            .with("/etc/cron/..1", of(FileKind::Directory, 0o755))
            .with("/etc/cron/..1/jobs.yaml", of(FileKind::File, 0o664))
            .link("/etc/cron/..data", owner, "..1")
            .link("/etc/cron/jobs.yaml", owner, "..data/jobs.yaml");
        tree.0.iter_mut().filter(|node| node.facts.kind == FileKind::Link).for_each(|node| {
            node.facts.is_read_only = is_read_only;
        });
        tree
    };
    assert_eq!(volume(true, 0).result("/etc/cron/jobs.yaml"), "/etc/cron/..1/jobs.yaml");
    assert_eq!(volume(true, ME).result("/etc/cron"), "/etc/cron");
    assert_eq!(volume(false, 0).result("/etc/cron/jobs.yaml"), "/etc/cron: AnybodyWrites { mode: 511 }");
    assert_eq!(volume(true, STRANGER).result("/etc/cron/jobs.yaml"), "/etc/cron: ForeignOwner { owner: 7 }");
    let mut foreign = volume(true, 0);
    foreign.0.last_mut().expect("the link").facts.owner = STRANGER;
    assert_eq!(foreign.result("/etc/cron/jobs.yaml"), "/etc/cron/jobs.yaml: ForeignLink { owner: 7 }");
    // A mount that nobody can write to may still be open for everybody to read.
    let open = Memory::new().with("/secret", Facts { is_read_only: true, ..facts(FileKind::File, 0, 0o644) });
    assert!(open.found("/secret", Wanted::Secret).is_err());
}

#[test]
fn a_group_may_write_only_if_nobody_else_is_in_it() {
    let of = |group| {
        let in_group = |facts: Facts| Facts { group, ..facts };
        Memory::new()
            .with("/home", in_group(facts(FileKind::Directory, ME, 0o775)))
            .with("/home/f", in_group(facts(FileKind::File, ME, 0o664)))
    };
    assert_eq!(of(OWN_GROUP).result("/home/f"), "/home/f");
    assert_eq!(of(6).result("/home/f"), "/home: GroupWrites { mode: 509, group: 6 }");
}

#[test]
fn a_secret_of_root_may_be_readable_by_a_group() {
    let is_accepted = |owner, mode| Memory::new().file("/secret", owner, mode).found("/secret", Wanted::Secret).is_ok();
    assert!(
        [(0, 0o400), (0, 0o440), (0, 0o640), (ME, 0o600), (ME, 0o400)]
            .into_iter()
            .all(|(owner, mode)| is_accepted(owner, mode))
    );
    let open = [(0, 0o444), (0, 0o660), (0, 0o644), (ME, 0o640), (ME, 0o440), (ME, 0o604), (STRANGER, 0o400)];
    assert!(!open.into_iter().any(|(owner, mode)| is_accepted(owner, mode)));
    // If this process is root itself, no other user needs access.
    let rules = AccessRules { me: 0, user: None, are_only_links_checked: false };
    let found = rules.check_last(&Memory::new(), None, &facts(FileKind::File, 0, 0o440), Wanted::Secret);
    assert_eq!(found, Err(Fault::Open { mode: 0o440 }));
}

#[test]
fn a_refusal_names_the_component_and_the_remedy() {
    let of = |fault, is_read_only| Unsafe { component: "/srv/x\u{1b}".into(), fault, me: 0, is_read_only }.to_string();
    let message = |fault| of(fault, false);
    assert_eq!(
        message(Fault::Open { mode: 0o644 }),
        "`/srv/x\\u{1b}` holds a secret, but users other than its owner may read or write it (mode 0644); \
         run `chmod 600 /srv/x\\u{1b}`"
    );
    assert!(message(Fault::ForeignOwner { owner: 7 }).contains("`chown 0 /srv/x"));
    assert!(message(Fault::AnybodyWrites { mode: 0o1777 }).contains("(mode 1777); run `chmod go-w /srv/x"));
    for fault in [Fault::Open { mode: 0o644 }, Fault::ForeignOwner { owner: 7 }] {
        let message = of(fault, true);
        assert!(message.contains("; its mount is read-only: change that where it is mounted from"), "{message}");
        assert!(!message.contains("run `"), "{message}");
    }
}

/// An independent model of what a stranger may do by the kernel's rules alone.
///
/// The stranger is a member of every group except this user's own.
impl Memory {
    fn may_write(&self, node: usize) -> bool {
        let Facts { owner, is_read_only, .. } = self.0[node].facts;
        // The owner may have another way to it, on which it can be written to.
        owner == STRANGER || !is_read_only && self.is_open(node)
    }

    fn is_open(&self, node: usize) -> bool {
        let Facts { group, mode, .. } = self.0[node].facts;
        mode & 0o002 != 0 || (mode & 0o020 != 0 && group != OWN_GROUP)
    }

    fn may_replace(&self, directory: usize, node: usize) -> bool {
        let is_sticky = self.0[directory].facts.mode & 0o1000 != 0;
        let owns_either = [directory, node].iter().any(|&node| self.0[node].facts.owner == STRANGER);
        self.may_write(directory) && (owns_either || !is_sticky)
    }

    fn may_have_put(&self, directory: usize, node: usize) -> bool {
        let Facts { kind, links, owner, .. } = self.0[node].facts;
        // A directory that is read-only here was not when it was filled.
        let could_write = self.0[directory].facts.owner == STRANGER || self.is_open(directory);
        could_write && kind != FileKind::Directory && (links > 1 || kind == FileKind::Link && owner == STRANGER)
    }

    /// Follows a path as the kernel does, and records each lookup as directory and node.
    fn follow(&self, at: &mut Vec<usize>, path: &Path, lookups: &mut Vec<(usize, usize)>) -> Option<()> {
        if path.is_absolute() {
            at.truncate(1);
        }
        for step in path.components() {
            let here = *at.last()?;
            (self.0[here].facts.kind == FileKind::Directory).then_some(())?;
            match step {
                Component::Normal(name) => {
                    let node = *self.0[here].children.get(name.to_str()?)?;
                    lookups.push((here, node));
                    let is_link = |&&(_, node): &&(usize, usize)| self.0[node].facts.kind == FileKind::Link;
                    (lookups.iter().filter(is_link).count() <= 40).then_some(())?;
                    match self.0[node].facts.kind {
                        FileKind::Link => self.follow(at, Path::new(&self.0[node].target), lookups)?,
                        _ => at.push(node),
                    }
                }
                Component::ParentDir if at.len() > 1 => drop(at.pop()),
                _ => {}
            }
        }
        Some(())
    }

    /// `None` if the path does not exist.
    fn is_safe(&self, path: &Path) -> Option<bool> {
        let (mut at, mut lookups) = (vec![0], Vec::new());
        self.follow(&mut at, path, &mut lookups)?;
        let end = *at.last()?;
        let is_virtual = lookups.iter().any(|&(_, node)| self.0[node].facts.is_virtual);
        let is_changeable = lookups
            .iter()
            .any(|&(directory, node)| self.may_replace(directory, node) || self.may_have_put(directory, node));
        Some(!(is_virtual || is_changeable || self.may_write(end)))
    }
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn paths(is_up_allowed: bool) -> impl Strategy<Value = String> {
    let steps = if is_up_allowed { &["a", "b", "c", "..", "."][..] } else { &NAMES[..] };
    let path = prop::collection::vec(prop::sample::select(steps), 1..4).prop_map(|steps| steps.join("/"));
    (any::<bool>(), path).prop_map(|(is_absolute, path)| format!("{}{path}", if is_absolute { "/" } else { "" }))
}

fn any_facts() -> impl Strategy<Value = Facts> {
    let kind = prop_oneof![
        5 => Just(FileKind::Directory), 2 => Just(FileKind::File), 2 => Just(FileKind::Link), 1 => Just(FileKind::Other)
    ];
    let owner = prop_oneof![4 => Just(0), 4 => Just(ME), 1 => Just(STRANGER)];
    let group = prop::sample::select(&[OWN_GROUP, OWN_GROUP, 0, 6][..]);
    let mode = prop_oneof![
        6 => Just(0o755), 2 => Just(0o700), 2 => Just(0o1777), 2 => Just(0o775), 1 => Just(0o777), 1 => Just(0o1775)
    ];
    (kind, owner, group, mode, 1..8_u64, 0..20_u8).prop_map(|(kind, owner, group, mode, links, where_it_is)| {
        let links = if links == 7 { 2 } else { 1 };
        let (is_virtual, is_read_only) = (where_it_is == 0, (1..5).contains(&where_it_is));
        Facts { kind, owner, group, mode, links, is_virtual, is_read_only }
    })
}

fn any_tree(is_up_allowed: bool) -> impl Strategy<Value = Memory> {
    const NODES: usize = 8;
    // A directory contains only later nodes, so no directory contains itself.
    let children = prop::collection::vec(1..NODES, NAMES.len());
    let nodes = prop::collection::vec((any_facts(), children, paths(is_up_allowed)), NODES);
    nodes.prop_map(|nodes| {
        let tree = nodes.into_iter().enumerate().map(|(at, (facts, children, target))| {
            let facts = if at == 0 {
                Facts { kind: FileKind::Directory, is_virtual: false, owner: 0, mode: 0o755, ..facts }
            } else {
                facts
            };
            let is_directory = facts.kind == FileKind::Directory;
            let children = NAMES.into_iter().zip(children).filter(|&(_, child)| is_directory && child > at);
            Node { facts, children: children.collect(), target }
        });
        Memory(tree.collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_stranger_can_change_what_is_accepted(tree in any_tree(true), path in paths(true)) {
        let path = format!("/{path}");
        let found = tree.found(&path, Wanted::Trusted);
        prop_assert!(found.is_err() || tree.is_safe(Path::new(&path)) == Some(true), "{found:?}");
    }

    #[test]
    fn what_no_stranger_can_change_is_accepted(tree in any_tree(false), path in paths(false)) {
        let path = format!("/{path}");
        let found = tree.found(&path, Wanted::Trusted);
        prop_assert!(found.is_ok() || tree.is_safe(Path::new(&path)) != Some(true), "{found:?}");
    }
}
