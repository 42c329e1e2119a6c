//! The rules by example, and against another reading of them: what a stranger could do to each part that the kernel would look up.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const ME: u32 = 4;
const OWN_GROUP: u32 = 5;
const STRANGER: u32 = 7;

/// A tree in memory; the first node is `/`.
#[derive(Clone, Debug)]
struct Memory(Vec<Node>);

#[derive(Clone, Debug)]
struct Node {
    facts: Facts,
    children: BTreeMap<&'static str, usize>,
    target: String,
}

impl Tree for Memory {
    type Node = usize;

    fn root(&self) -> io::Result<usize> {
        Ok(0)
    }

    fn enter(&self, folder: &usize, name: &OsStr) -> io::Result<usize> {
        let name = name.to_str().expect("names here are texts");
        self.0[*folder].children.get(name).copied().ok_or_else(|| Errno::NOENT.into())
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

fn facts(kind: Kind, owner: u32, mode: u32) -> Facts {
    Facts { kind, owner, group: 0, mode, links: 1, is_kernels: false }
}

fn node(facts: Facts) -> Node {
    Node { facts, children: BTreeMap::new(), target: String::new() }
}

impl Memory {
    fn new() -> Self {
        Self(vec![node(facts(Kind::Folder, 0, 0o755))])
    }

    /// Puts something at a path whose folders are there.
    fn with(mut self, path: &'static str, facts: Facts) -> Self {
        let (folder, name) = path.rsplit_once('/').expect("paths here are absolute");
        let folder = folder.split('/').skip(1).fold(0, |folder, name| self.0[folder].children[name]);
        let at = self.0.len();
        self.0[folder].children.insert(name, at);
        self.0.push(node(facts));
        self
    }

    fn folder(self, path: &'static str, owner: u32, mode: u32) -> Self {
        self.with(path, facts(Kind::Folder, owner, mode))
    }

    fn file(self, path: &'static str, owner: u32, mode: u32) -> Self {
        self.with(path, facts(Kind::File, owner, mode))
    }

    fn link(mut self, path: &'static str, owner: u32, target: &str) -> Self {
        self = self.with(path, facts(Kind::Link, owner, 0o777));
        self.0.last_mut().expect("it was put there").target = target.to_owned();
        self
    }

    fn found(&self, path: &str, wanted: Wanted) -> Result<PathBuf, Refusal> {
        let judge = Judge { me: ME };
        let way = walk(self, Path::new(path), &judge)?;
        way.judge_end(self, &judge, &way.end().facts, wanted)?;
        Ok(way.path())
    }

    /// Where a path leads, or by which part it is refused and why.
    fn said(&self, path: &str) -> String {
        match self.found(path, Wanted::Trusted) {
            Ok(path) => path.display().to_string(),
            Err(Refusal::Unsafe(found)) => format!("{}: {:?}", found.component.display(), found.fault),
            Err(Refusal::Io(error)) => format!("{:?}", error.kind()),
        }
    }
}

#[test]
fn every_folder_up_to_the_root_counts() {
    let tree = Memory::new().folder("/srv", 0, 0o755).folder("/srv/x", STRANGER, 0o755).file("/srv/x/f", 0, 0o644);
    assert_eq!(tree.said("/srv/x/f"), "/srv/x: ForeignOwner { owner: 7 }");
    let tree = Memory::new().folder("/srv", 0, 0o777).folder("/srv/x", 0, 0o755).file("/srv/x/f", 0, 0o644);
    assert_eq!(tree.said("/srv/x/f"), "/srv: AnybodyWrites { mode: 511 }");
    let tree = Memory::new().folder("/srv", ME, 0o750).folder("/srv/x", 0, 0o755).file("/srv/x/f", ME, 0o644);
    assert_eq!(tree.said("/srv/x/../x/./f"), "/srv/x/f");
    assert_eq!(tree.said("/srv/x"), "/srv/x");
    assert_eq!(tree.said("/../.."), "/");
    assert_eq!(
        [tree.said("/srv/y"), tree.said("/srv/x/f/.."), tree.said("/srv/x/f/g")],
        ["NotFound", "NotADirectory", "NotADirectory"]
    );
    let mut open = Memory::new();
    open.0[0].facts.mode = 0o777;
    assert_eq!(open.said("/"), "/: AnybodyWrites { mode: 511 }");
}

#[test]
fn in_a_sticky_folder_what_is_ours_stays_ours() {
    let tree = Memory::new()
        .folder("/tmp", 0, 0o1777)
        .folder("/tmp/ours", ME, 0o700)
        .file("/tmp/ours/f", ME, 0o600)
        .folder("/tmp/theirs", STRANGER, 0o755)
        .file("/tmp/f", ME, 0o644)
        .link("/tmp/link", ME, "ours/f")
        .link("/tmp/trap", STRANGER, "ours/f")
        .with("/tmp/planted", Facts { links: 2, ..facts(Kind::File, 0, 0o644) });
    assert_eq!(
        [tree.said("/tmp/ours/f"), tree.said("/tmp/f"), tree.said("/tmp/link")],
        ["/tmp/ours/f", "/tmp/f", "/tmp/ours/f"]
    );
    assert_eq!(tree.said("/tmp/theirs"), "/tmp/theirs: ForeignOwner { owner: 7 }");
    assert_eq!(tree.said("/tmp/trap"), "/tmp/trap: ForeignLink { owner: 7 }");
    assert_eq!(tree.said("/tmp/planted"), "/tmp/planted: HardLinked { links: 2 }");
    assert_eq!(tree.said("/tmp"), "/tmp: AnybodyWrites { mode: 1023 }");
}

#[test]
fn of_a_link_its_own_folder_counts_and_where_it_leads() {
    let tree = Memory::new()
        .folder("/etc", 0, 0o755)
        .link("/etc/jobs", 0, "/srv/x/f")
        .link("/etc/given", STRANGER, "real")
        .file("/etc/real", 0, 0o644)
        .folder("/srv", 0, 0o755)
        .folder("/srv/x", STRANGER, 0o755)
        .link("/srv/x/back", 0, "/etc/real")
        .link("/srv/turn", 0, "../srv/turn");
    assert_eq!(tree.said("/etc/jobs"), "/srv/x: ForeignOwner { owner: 7 }");
    assert_eq!(tree.said("/srv/x/back"), "/srv/x: ForeignOwner { owner: 7 }");
    assert_eq!(tree.said("/etc/given"), "/etc/real", "only who may write the folder could have put it there");
    assert_eq!(tree.said("/srv/turn"), "FilesystemLoop");
}

#[test]
fn a_file_of_the_kernels_is_refused_whoever_owns_it() {
    let made_up = Facts { is_kernels: true, ..facts(Kind::File, 0, 0o444) };
    let tree = Memory::new().folder("/proc", 0, 0o555).with("/proc/f", made_up).link("/f", 0, "proc/f");
    assert_eq!(tree.said("/f"), "/proc/f: OfKernel");
}

#[test]
fn a_group_may_write_only_if_nobody_else_is_in_it() {
    let of = |group| {
        let in_group = |facts: Facts| Facts { group, ..facts };
        Memory::new()
            .with("/home", in_group(facts(Kind::Folder, ME, 0o775)))
            .with("/home/f", in_group(facts(Kind::File, ME, 0o664)))
    };
    assert_eq!(of(OWN_GROUP).said("/home/f"), "/home/f");
    assert_eq!(of(6).said("/home/f"), "/home: GroupWrites { mode: 509, group: 6 }");
}

#[test]
fn a_secret_of_roots_may_be_given_to_a_group() {
    let is_kept = |owner, mode| Memory::new().file("/secret", owner, mode).found("/secret", Wanted::Secret).is_ok();
    assert!(
        [(0, 0o400), (0, 0o440), (0, 0o640), (ME, 0o600), (ME, 0o400)]
            .into_iter()
            .all(|(owner, mode)| is_kept(owner, mode))
    );
    let open = [(0, 0o444), (0, 0o660), (0, 0o644), (ME, 0o640), (ME, 0o440), (ME, 0o604), (STRANGER, 0o400)];
    assert!(!open.into_iter().any(|(owner, mode)| is_kept(owner, mode)));
    // Where this process is root itself, there is nobody to give it to.
    let judge = Judge { me: 0 };
    let found = judge.end(&Memory::new(), None, &facts(Kind::File, 0, 0o440), Wanted::Secret);
    assert_eq!(found, Err(Fault::Open { mode: 0o440 }));
}

#[test]
fn a_refusal_names_the_part_and_what_to_do() {
    let said = |fault| Unsafe { component: "/srv/x\u{1b}".into(), fault, me: 0 }.to_string();
    assert_eq!(
        said(Fault::Open { mode: 0o644 }),
        "`/srv/x\\u{1b}` holds a secret, and others than its owner may read or write it (mode 0644); \
         take that away with `chmod 600 /srv/x\\u{1b}`"
    );
    assert!(said(Fault::ForeignOwner { owner: 7 }).contains("`chown 0 /srv/x"));
    assert!(
        said(Fault::AnybodyWrites { mode: 0o1777 }).contains("(mode 1777); take that away with `chmod go-w /srv/x")
    );
}

/// What a stranger, who is also in every group but the own one, may do; by the rules of the kernel alone.
impl Memory {
    fn may_write(&self, node: usize) -> bool {
        let Facts { owner, group, mode, .. } = self.0[node].facts;
        owner == STRANGER || mode & 0o002 != 0 || (mode & 0o020 != 0 && group != OWN_GROUP)
    }

    fn may_replace(&self, folder: usize, node: usize) -> bool {
        let is_sticky = self.0[folder].facts.mode & 0o1000 != 0;
        let owns_either = [folder, node].iter().any(|&node| self.0[node].facts.owner == STRANGER);
        self.may_write(folder) && (owns_either || !is_sticky)
    }

    fn may_have_put(&self, folder: usize, node: usize) -> bool {
        let Facts { kind, links, .. } = self.0[node].facts;
        self.may_write(folder) && kind != Kind::Folder && links > 1
    }

    /// Goes along a path as the kernel does, and notes what it looks up where.
    fn follow(&self, at: &mut Vec<usize>, path: &Path, looked_up: &mut Vec<(usize, usize)>) -> Option<()> {
        if path.is_absolute() {
            at.truncate(1);
        }
        for step in path.components() {
            let here = *at.last()?;
            (self.0[here].facts.kind == Kind::Folder).then_some(())?;
            match step {
                Component::Normal(name) => {
                    let node = *self.0[here].children.get(name.to_str()?)?;
                    looked_up.push((here, node));
                    let is_link = |&&(_, node): &&(usize, usize)| self.0[node].facts.kind == Kind::Link;
                    (looked_up.iter().filter(is_link).count() <= 40).then_some(())?;
                    match self.0[node].facts.kind {
                        Kind::Link => self.follow(at, Path::new(&self.0[node].target), looked_up)?,
                        _ => at.push(node),
                    }
                }
                Component::ParentDir if at.len() > 1 => drop(at.pop()),
                _ => {}
            }
        }
        Some(())
    }

    /// `None` where the path leads nowhere.
    fn is_safe(&self, path: &Path) -> Option<bool> {
        let (mut at, mut looked_up) = (vec![0], Vec::new());
        self.follow(&mut at, path, &mut looked_up)?;
        let end = *at.last()?;
        let is_kernels = looked_up.iter().any(|&(_, node)| self.0[node].facts.is_kernels);
        let is_touched =
            looked_up.iter().any(|&(folder, node)| self.may_replace(folder, node) || self.may_have_put(folder, node));
        Some(!(is_kernels || is_touched || self.may_write(end)))
    }
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn paths(is_up_allowed: bool) -> impl Strategy<Value = String> {
    let steps = if is_up_allowed { &["a", "b", "c", "..", "."][..] } else { &NAMES[..] };
    let path = prop::collection::vec(prop::sample::select(steps), 1..4).prop_map(|steps| steps.join("/"));
    (any::<bool>(), path).prop_map(|(is_absolute, path)| format!("{}{path}", if is_absolute { "/" } else { "" }))
}

fn any_facts() -> impl Strategy<Value = Facts> {
    let kind =
        prop_oneof![5 => Just(Kind::Folder), 2 => Just(Kind::File), 2 => Just(Kind::Link), 1 => Just(Kind::Other)];
    let owner = prop_oneof![4 => Just(0), 4 => Just(ME), 1 => Just(STRANGER)];
    let group = prop::sample::select(&[OWN_GROUP, OWN_GROUP, 0, 6][..]);
    let mode = prop_oneof![
        6 => Just(0o755), 2 => Just(0o700), 2 => Just(0o1777), 2 => Just(0o775), 1 => Just(0o777), 1 => Just(0o1775)
    ];
    (kind, owner, group, mode, 1..8_u64, 0..20_u8).prop_map(|(kind, owner, group, mode, links, is_kernels)| {
        let links = if links == 7 { 2 } else { 1 };
        Facts { kind, owner, group, mode, links, is_kernels: is_kernels == 0 }
    })
}

fn any_tree(is_up_allowed: bool) -> impl Strategy<Value = Memory> {
    const NODES: usize = 8;
    // A folder holds later nodes only: no folder stands in itself.
    let children = prop::collection::vec(1..NODES, NAMES.len());
    let nodes = prop::collection::vec((any_facts(), children, paths(is_up_allowed)), NODES);
    nodes.prop_map(|nodes| {
        let tree = nodes.into_iter().enumerate().map(|(at, (facts, children, target))| {
            let facts = if at == 0 {
                Facts { kind: Kind::Folder, is_kernels: false, owner: 0, mode: 0o755, ..facts }
            } else {
                facts
            };
            let is_folder = facts.kind == Kind::Folder;
            let children = NAMES.into_iter().zip(children).filter(|&(_, child)| is_folder && child > at);
            Node { facts, children: children.collect(), target }
        });
        Memory(tree.collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn what_is_let_through_no_stranger_can_touch(tree in any_tree(true), path in paths(true)) {
        let path = format!("/{path}");
        let found = tree.found(&path, Wanted::Trusted);
        prop_assert!(found.is_err() || tree.is_safe(Path::new(&path)) == Some(true), "{found:?}");
    }

    #[test]
    fn what_no_stranger_can_touch_is_let_through(tree in any_tree(false), path in paths(false)) {
        let path = format!("/{path}");
        let found = tree.found(&path, Wanted::Trusted);
        prop_assert!(found.is_ok() || tree.is_safe(Path::new(&path)) != Some(true), "{found:?}");
    }
}
