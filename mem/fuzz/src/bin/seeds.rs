//! Writes each target's seeds into a folder: `seeds FOLDER`. Files are named by what is in them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let Some(folder) = env::args_os().nth(1).map(PathBuf::from) else {
        return Err(io::Error::other("which folder? seeds FOLDER"));
    };
    for (target, seed) in symmem_fuzz::seeds() {
        let folder = folder.join(target);
        fs::create_dir_all(&folder)?;
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        fs::write(folder.join(format!("{:016x}", hasher.finish())), seed)?;
    }
    Ok(())
}
