//! `symmem kernels` as its users see it.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::process::Command;

fn symmem(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symmem"));
    command.arg("kernels").args(args);
    command
}

#[test]
fn sources_are_written_out_with_a_list() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let output = symmem(&["--sources", path]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let header = fs::read_to_string(folder.path().join("include/symmem.cuh")).unwrap();
    assert_eq!(header, symmem::hal::kernels::SYMMEM_CUH.1);
    let list = fs::read_to_string(folder.path().join("units")).unwrap();
    let mut listed = 0;
    for set in symmem::KERNEL_UNITS {
        (set.each)(&mut |_| listed += 1);
    }
    assert_eq!(list.lines().count(), listed);
    for line in list.lines() {
        let mut words = line.split('\t');
        assert!(folder.path().join(words.next().unwrap()).is_file(), "{line}");
        assert!(words.all(|word| word.starts_with("-D")), "{line}");
    }
}

#[test]
fn no_other_architecture_is_taken() {
    for args in [["--arch", "sm_90"], ["--arch", "gfx942"]] {
        let output = symmem(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

#[test]
fn without_the_compiler_it_says_what_was_searched() {
    let mut units = 0;
    symmem::KERNEL_UNITS.iter().for_each(|set| (set.each)(&mut |_| units += 1));
    if units == 0 {
        return println!("skipped: there are no units");
    }
    let nowhere = "/nowhere/libnvrtc.so";
    let mut command = symmem(&["--arch", "sm_80"]);
    let output = command.env("SYMMEM_NVRTC_LIBRARY", nowhere).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(nowhere), "{said}");
}
