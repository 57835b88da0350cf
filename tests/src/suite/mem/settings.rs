//! Defaults of the process: each test has a process of its own, since what is taken is fixed.

use symmem_hal::types::{BackendKind, Bytes};
use symmem_hal::{Fault as _, Kind};
use symmem_mem::settings::{self, SettingError};
use symmem_mem::{Options, launch};

use crate::runner::{Context, Test, Verdict};
use crate::{check, check_eq, check_err, test};

pub(super) const TESTS: &[Test] = &[
    test!(pads_have_the_size_that_was_set).local().isolated(),
    test!(groups_are_on_the_backend_that_was_set).local().isolated(),
];

fn pads_have_the_size_that_was_set(_: &Context) -> Verdict {
    check_eq!(settings::signal_pad_size(), Bytes::new(9216));
    // Until one is taken, the last one counts.
    settings::set_signal_pad_size(Bytes::mib(1))?;
    settings::set_signal_pad_size(Bytes::kib(64))?;
    check_eq!(settings::signal_pad_size(), Bytes::kib(64));
    check_eq!(Options::default().pad, Bytes::kib(64));
    settings::set_signal_pad_size(Bytes::kib(64))?;
    let error = check_err!(
        settings::set_signal_pad_size(Bytes::kib(32)),
        SettingError::SignalPadSize { .. }
    );
    let expected = SettingError::SignalPadSize { fixed: Bytes::kib(64), asked: Bytes::kib(32) };
    check_eq!(error, expected);
    check_eq!(error.kind(), Kind::InvalidArgument);
    let text = error.to_string();
    check!(text.contains("64 KiB") && text.contains("32 KiB"), "{text}");
    let pads = launch::threads(2, |group| group.options().pad)?;
    check_eq!(pads, [Bytes::kib(64); 2]);
    Ok(())
}

fn groups_are_on_the_backend_that_was_set(_: &Context) -> Verdict {
    check_eq!(settings::backend(), BackendKind::Host);
    settings::set_backend(BackendKind::Host)?;
    settings::set_backend(BackendKind::Stub)?;
    let error = check_err!(settings::set_backend(BackendKind::Hip), SettingError::NoBackend(_));
    check_eq!(error.kind(), Kind::Unsupported);
    check_eq!(settings::backend(), BackendKind::Stub);
    let kinds = launch::threads(2, |group| group.device().kind())?;
    check_eq!(kinds, [BackendKind::Stub; 2]);
    settings::set_backend(BackendKind::Stub)?;
    let error = check_err!(settings::set_backend(BackendKind::Host), SettingError::Backend { .. });
    let expected = SettingError::Backend { fixed: BackendKind::Stub, asked: BackendKind::Host };
    check_eq!(error, expected);
    let text = error.to_string();
    check!(text.contains("stub") && text.contains("host"), "{text}");
    Ok(())
}
