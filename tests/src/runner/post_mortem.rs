//! What the threads of a process that hangs are doing.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// One line a thread: its name, its state, what it sleeps on and in which system call, as far as
/// the system tells.
pub(super) fn threads(process: u32) -> String {
    let mut text = String::new();
    let tasks = format!("/proc/{process}/task");
    let Ok(entries) = fs::read_dir(&tasks) else {
        return format!("    process {process} is gone\n");
    };
    for entry in entries.flatten() {
        let read = |file: &str| read(&entry.path().join(file));
        let status = read("status");
        let state = field(&status, "State:").unwrap_or("?");
        let call = read("syscall");
        let _ = writeln!(
            text,
            "    thread {}: {state}, sleeps on {}, system call {}",
            read("comm"),
            or_unknown(&read("wchan")),
            or_unknown(call.split_whitespace().next().unwrap_or_default()),
        );
    }
    text
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn or_unknown(text: &str) -> &str {
    if text.is_empty() || text == "0" { "?" } else { text }
}
