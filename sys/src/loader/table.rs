//! The macro that makes a table of functions.

/// Makes a struct with one optional function pointer for each symbol, and one accessor for each
/// that returns it or a [`MissingSymbol`](crate::MissingSymbol).
///
/// `$bindings` is a module with a type of each symbol's name and the list `SINCE`; `$spec` tells
/// where the library is. The invoking module defines `read_version(&$table) -> Option<Version>`.
macro_rules! table {
    (
        $(#[$meta:meta])*
        pub struct $table:ident in $bindings:ident from $spec:ident {
            $($symbol:ident),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        pub struct $table {
            library: $crate::loader::Library,
            version: Option<$crate::loader::Version>,
            $($symbol: Option<$bindings::$symbol>,)+
        }

        impl $table {
            /// The symbols that this table knows.
            pub const SYMBOLS: &'static [&'static str] = &[$(stringify!($symbol)),+];

            /// The table of this process. The first call searches and opens the library; all calls
            /// return that outcome. The library is never closed.
            ///
            /// # Errors
            ///
            /// [`NotFound`](crate::NotFound), with everything that was searched.
            pub fn get() -> Result<&'static Self, $crate::loader::NotFound> {
                static TABLE: ::std::sync::OnceLock<Result<$table, $crate::loader::NotFound>> =
                    ::std::sync::OnceLock::new();
                TABLE
                    .get_or_init(|| {
                        let variable = &$crate::loader::process_variable;
                        // SAFETY: the candidates are the vendor's library under its own name, where
                        // the machine's owner installed it or the user's environment points to:
                        // the trust that the dynamic linker puts in the same places when it starts
                        // any program. It holds for the life of the process.
                        unsafe { $crate::loader::Library::find(&$spec, variable) }
                            .map(Self::resolve)
                    })
                    .as_ref()
                    .map_err(Clone::clone)
            }

            /// A table of the library at `path`, for a library that is not among those searched.
            /// It is never closed, the table dropped or not.
            ///
            /// # Errors
            ///
            /// [`NotFound`](crate::NotFound), with the reason.
            ///
            /// # Safety
            ///
            /// Opening a library runs its initialisers before this returns. The caller vouches that
            /// they are sound to run in this process, and that each exported function that this
            /// table knows has the signature of the vendor's header.
            pub unsafe fn open(
                path: &::std::path::Path,
            ) -> Result<Self, $crate::loader::NotFound> {
                // SAFETY: the caller vouches for the file.
                unsafe { $crate::loader::Library::open(&$spec, path) }.map(Self::resolve)
            }

            fn resolve(library: $crate::loader::Library) -> Self {
                let mut table = $table {
                    $(
                        // SAFETY: the type is generated from the vendor's header for the exported
                        // function of this name, and whoever opened the library vouched that it
                        // is the vendor's.
                        $symbol: unsafe { library.function(stringify!($symbol)) },
                    )+
                    version: None,
                    library,
                };
                table.version = read_version(&table);
                table
            }

            /// The version that the library states; `None` where it does not tell.
            #[must_use]
            pub fn version(&self) -> Option<$crate::loader::Version> {
                self.version
            }

            /// Where the library was loaded from.
            #[must_use]
            pub fn path(&self) -> &::std::path::Path {
                self.library.path()
            }

            /// The sort of place in which the library was found.
            #[must_use]
            pub fn place(&self) -> $crate::loader::Place {
                self.library.place()
            }

            /// The symbols that this release of the library does not have.
            #[must_use]
            pub fn missing(&self) -> Vec<$crate::loader::MissingSymbol> {
                [$(self.$symbol().err()),+].into_iter().flatten().collect()
            }

            pub(crate) fn report() -> $crate::LibraryReport {
                $crate::LibraryReport {
                    name: $spec.name,
                    variable: $spec.variable,
                    outcome: Self::get().map(|table| $crate::Found {
                        path: table.path().to_owned(),
                        place: table.place(),
                        version: table.version,
                        known: Self::SYMBOLS.len(),
                        missing: table.missing(),
                    }),
                }
            }

            #[cold]
            fn missing_symbol(&self, symbol: &'static str) -> $crate::loader::MissingSymbol {
                let since = $bindings::SINCE.iter().find(|(name, _)| *name == symbol);
                $crate::loader::MissingSymbol {
                    library: $spec.name,
                    symbol,
                    path: self.library.path().clone(),
                    version: self.version,
                    since: since.map(|(_, number)| $crate::loader::Version::from_cuda(*number)),
                }
            }

            $(
                #[doc = concat!("The function `", stringify!($symbol), "`, or that it is missing.")]
                #[inline]
                pub fn $symbol(
                    &self,
                ) -> Result<$bindings::$symbol, $crate::loader::MissingSymbol> {
                    self.$symbol.ok_or_else(|| self.missing_symbol(stringify!($symbol)))
                }
            )+
        }

        impl ::core::fmt::Debug for $table {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(stringify!($table))
                    .field("path", &self.path())
                    .field("version", &self.version)
                    .finish_non_exhaustive()
            }
        }
    };
}

pub(crate) use table;
