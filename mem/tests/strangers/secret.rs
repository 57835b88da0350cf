//! The token of a run, which is to show nowhere but in its store.

use std::fs;
use std::path::PathBuf;

use symmem_hal::Wait;
use symmem_mem::store::Store as _;

use crate::Failed;
use crate::run::{PATIENT, Run};

/// Looks for a token in all that others may see: logs at every level, arguments, environments, names of
/// processes, threads, mappings, descriptors and sockets.
pub fn nowhere() -> Result<(), Failed> {
    let mut run = Run::started("secrets")?;
    run.goes_on()?;
    let key = format!("symmem/{}.0/token", run.name);
    let token = String::from_utf8(run.client()?.get(&key, &PATIENT)?)?;
    if token.len() != 64 {
        return Err(format!("no token: {} bytes", token.len()).into());
    }
    // One of another store comes, and must go.
    let other = Run::new("secrets-other")?;
    run.process("refused rank", 1, other.port)?.ends_well("the refused rank")?;
    let other_key = format!("symmem/{}.0/token", run.name);
    let others = String::from_utf8(other.client()?.get(&other_key, &PATIENT)?)?;
    // Whoever adds to the token is closed, and the store tells why.
    if run.client()?.add(&key, 1, &PATIENT).is_ok() {
        return Err("a token was added to".into());
    }
    // A call that fails says of which key, and nothing of its value.
    let brief = Wait::timeout(std::time::Duration::from_millis(1));
    let Err(error) = run.client()?.get("never", &brief) else { return Err("a value".into()) };
    let mut seen = vec![("an error".into(), format!("{error} {error:?}").into_bytes())];
    for running in run.ranks.iter().chain([&run.store]) {
        seen.extend(shown_by(running.id())?);
    }
    seen.push(("/proc/net/unix".into(), fs::read("/proc/net/unix")?));
    run.goes_on()?;
    run.ends_well()?;
    let logs = run.logs()?;
    // What is looked through is what was to be: all spans, and the refusals.
    for (name, told) in [
        ("rank 0", "rendezvous"),
        ("rank 1", "joined"),
        ("refused rank 1", "the token is another run's"),
        ("store", "is not a decimal number"),
    ] {
        let log = logs.iter().find(|(path, _)| path.ends_with(name));
        if !log.is_some_and(|(_, text)| text.contains(told)) {
            return Err(format!("the log of {name} does not say {told:?}").into());
        }
    }
    let bytes = logs.iter().map(|(_, text)| text.len()).sum::<usize>();
    seen.extend(logs.into_iter().map(|(path, text)| (path, text.into_bytes())));
    println!("{} places looked at, {bytes} bytes of logs among them", seen.len());
    for secret in [token, others] {
        // As the store has it, in part too, and as the ranks do.
        let raw: Vec<u8> = (0..64)
            .step_by(2)
            .map(|at| u8::from_str_radix(&secret[at..at + 2], 16))
            .collect::<Result<_, _>>()?;
        for form in [&secret.as_bytes()[..16], &secret.as_bytes()[48..], &raw[..8]] {
            let list = format!("{form:?}");
            let list = list.trim_matches(['[', ']']).as_bytes();
            for (place, text) in &seen {
                let text = text.to_ascii_lowercase();
                let has = |part: &[u8]| text.windows(part.len()).any(|found| found == part);
                if has(&form.to_ascii_lowercase()) || has(list) {
                    return Err(format!("a token shows in {}", place.display()).into());
                }
            }
        }
    }
    Ok(())
}

/// What the system shows of a process.
fn shown_by(process: u32) -> Result<Vec<(PathBuf, Vec<u8>)>, Failed> {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let mut seen = Vec::new();
    for file in ["cmdline", "environ", "comm", "maps", "status"] {
        seen.push((folder.join(file), fs::read(folder.join(file))?));
    }
    for thread in fs::read_dir(folder.join("task"))? {
        let path = thread?.path().join("comm");
        // One may have ended since.
        seen.extend(fs::read(&path).ok().map(|name| (path, name)));
    }
    for descriptor in fs::read_dir(folder.join("fd"))? {
        let path = descriptor?.path();
        let target = fs::read_link(&path).ok();
        seen.extend(target.map(|to| (path, to.into_os_string().into_encoded_bytes())));
    }
    Ok(seen)
}
