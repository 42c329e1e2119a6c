//! The host's name, from the kernel.

use cronkeeper_core::term::NodeName;

/// The name of this host; `localhost` if it is empty.
pub fn name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

/// The host's name as part of a node name: characters not allowed there become `-`.
pub fn plain_name() -> String {
    let plain = |c| if NodeName::may_contain(c) { c } else { '-' };
    let name: String = name().chars().map(plain).take(200).collect();
    match name.trim_start_matches('.') {
        "" => "host".to_owned(),
        name => name.to_owned(),
    }
}
