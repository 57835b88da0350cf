//! What names a run of Hydra's, which does so in no variable.

use std::fs;

use rustix::process::getpid;

/// Hydra's process on each host, the parent of its ranks or of what runs them.
const PROXY: &str = "hydra_pmi_proxy";

/// The nearest process of this process's parents that is Hydra's: the same one for all ranks that it
/// started on this host, and no other run's. `None` where there is none to be seen, as in a container
/// of each rank's own.
pub(crate) fn nearest() -> Option<String> {
    let own = i64::from(getpid().as_raw_nonzero().get());
    let proxy = ancestor(own, PROXY)?;
    // Numbers of processes are used again, the time since the system's start is not.
    Some(format!("hydra-{}-{}", proxy.pid, proxy.started))
}

#[derive(Debug)]
struct Process {
    pid: i64,
    name: String,
    parent: i64,
    /// In clock ticks since the system's start.
    started: u64,
}

/// The nearest process of that name from `pid` up.
fn ancestor(mut pid: i64, name: &str) -> Option<Process> {
    // More than any chain of wrappers; a process that ends meanwhile may leave a chain that is none.
    for _ in 0..64 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let process = parse(&stat)?;
        if process.name == name {
            return Some(process);
        }
        pid = process.parent;
    }
    None
}

/// proc_pid_stat(5). The name is in parentheses and may contain any.
fn parse(stat: &str) -> Option<Process> {
    let (pid, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    Some(Process {
        pid: pid.parse().ok()?,
        name: name.to_owned(),
        parent: fields.nth(1)?.parse().ok()?,
        // The 22nd of all; two went before the state, and two more with the parent.
        started: fields.nth(17)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up fails the test")]
    use super::*;

    #[test]
    fn a_line_of_proc() {
        // Of a proxy of MPICH 4.0.2, its name changed to one that looks like the end of a name.
        let line = "11114 (a) R (1 2 3) S 11113 11114 11114 0 -1 4194304 175 442 0 0 0 0 0 0 20 0 1 0 66044 6832128 641";
        let process = parse(line).unwrap();
        assert_eq!((process.pid, process.parent, process.started), (11114, 11113, 66044));
        assert_eq!(process.name, "a) R (1 2 3");
        for end in 0..line.len() - "66044 6832128 641".len() {
            assert!(parse(&line[..end]).is_none(), "{:?}", &line[..end]);
        }
    }

    #[test]
    fn parents_by_name() {
        let own = parse(&fs::read_to_string("/proc/self/stat").unwrap()).unwrap();
        let parent = fs::read_to_string(format!("/proc/{}/stat", own.parent)).unwrap();
        let parent = parse(&parent).unwrap();
        let found = ancestor(own.pid, &parent.name).unwrap();
        assert_eq!((found.pid, found.started), (parent.pid, parent.started));
        assert!(ancestor(own.pid, "no process has this name").is_none());
    }
}
