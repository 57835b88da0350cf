//! The suite, on the matrix that the arguments ask for.

fn main() -> std::process::ExitCode {
    symmem_tests::main()
}
