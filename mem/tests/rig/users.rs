//! Programs as other users.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// A user that is not root and owns nothing.
pub const NOBODY: u32 = 65_534;

/// Set for a process that only shows that it can be started.
const PROBE: &str = "SYMMEM_TEST_PROBE";

/// Whether this process is one of those.
pub fn is_probe() -> bool {
    env::var_os(PROBE).is_some()
}

/// Why a command cannot be run here, if so.
pub fn fails(command: &mut Command) -> Option<String> {
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(e) => Some(format!("{:?}: {e}", command.get_program())),
    }
}

/// Why this program cannot be run by another user, if so: no right to, it lies where that user may not
/// read, or this is that user.
pub fn as_another() -> Option<String> {
    if rustix::process::geteuid().as_raw() == NOBODY {
        return Some(format!("this process is user {NOBODY} itself"));
    }
    let program = env::current_exe().ok()?;
    fails(Command::new(program).env(PROBE, "yes").uid(NOBODY).gid(NOBODY))
}
