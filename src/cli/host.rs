//! The host's name, as the kernel has it.

/// The name of this host; `localhost` where it has none that can be read.
pub fn name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { "localhost".to_owned() } else { name }
}
