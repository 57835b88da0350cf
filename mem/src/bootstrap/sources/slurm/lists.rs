//! Slurm's compressed lists. Of a list as long as a machine's, two things are asked, for which it is
//! not expanded.

/// How many tasks a host has, by a list such as `4(x2),3`: 4 on each of two hosts, 3 on another.
/// `None` if the list is none, or has no such host.
pub(crate) fn tasks_on(list: &str, node: usize) -> Option<usize> {
    let mut hosts = 0_usize;
    let mut found = None;
    for item in list.split(',') {
        let (tasks, times) = match item.split_once('(') {
            Some((tasks, times)) => {
                (number(tasks)?, number(times.strip_prefix('x')?.strip_suffix(')')?)?)
            }
            None => (number(item)?, 1),
        };
        hosts = hosts.checked_add(times)?;
        // The first that reaches it; the rest is read on, since half of a list is none.
        if node < hosts {
            found = found.or(Some(tasks));
        }
    }
    found.filter(|tasks| *tasks > 0)
}

/// Digits alone: Rust's numbers may have a sign.
fn number(text: &str) -> Option<usize> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// The longest name that DNS has.
const LONGEST: usize = 253;

/// The first of a list of hosts such as `rack[1-2]node[01-03,7]-ib,other`: `rack1node01-ib`. `None`
/// if the list's first item is none.
pub(crate) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    loop {
        let end = rest.find(['[', ']', ',']).unwrap_or(rest.len());
        let (plain, after) = rest.split_at(end);
        if !plain.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) {
            return None;
        }
        host.push_str(plain);
        match after.strip_prefix('[') {
            Some(ranges) => {
                let (ranges, after) = ranges.split_once(']')?;
                host.push_str(first_of_ranges(ranges)?);
                rest = after;
            }
            None if after.starts_with(']') => return None,
            None => break,
        }
    }
    (1..=LONGEST).contains(&host.len()).then_some(host)
}

/// The first number of ranges such as `01-03,7`, with its zeros.
fn first_of_ranges(ranges: &str) -> Option<&str> {
    let mut first = None;
    for range in ranges.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        if number(from)? > number(to)? {
            return None;
        }
        first = first.or(Some(from));
    }
    first
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tasks_of_a_host() {
        use tasks_on as on;
        // As Slurm 22.05 wrote them.
        assert_eq!([0, 1, 2].map(|node| on("2,1", node)), [Some(2), Some(1), None]);
        assert_eq!([0, 1, 2].map(|node| on("2(x2)", node)), [Some(2), Some(2), None]);
        assert_eq!([1, 2, 3].map(|node| on("4(x2),3", node)), [Some(4), Some(3), None]);
        let most = usize::MAX;
        assert_eq!(on(&format!("1,2(x{})", most - 1), most - 1), Some(2));
        for none in [
            "",
            ",",
            "1,",
            "a",
            "+1",
            "-1",
            "1(2)",
            "1(x)",
            "1(x2",
            "1x2)",
            "1(x2)3",
            " 1",
            "1(x-2)",
            "0",
            "1(x99999999999999999999)",
            "99999999999999999999",
        ] {
            assert_eq!(on(none, 0), None, "{none:?}");
        }
        assert_eq!(on(&format!("1,2(x{most})"), 0), None, "more hosts than can be counted");
    }

    #[test]
    fn first_hosts() {
        for (list, first) in [
            ("n1", "n1"),
            ("n[1-2]", "n1"),
            ("host[01-03,7],other", "host01"),
            ("other,host[01-03]", "other"),
            ("rack[2-3]node[007]-ib.local,x", "rack2node007-ib.local"),
            ("[3-4]", "3"),
            ("n[9,1-2]", "n9"),
            ("10.0.0.[7-9]", "10.0.0.7"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list:?}");
        }
        let long = "n".repeat(LONGEST);
        assert_eq!(first_host(&long).as_ref(), Some(&long));
        for none in [
            "",
            ",a",
            "n[",
            "n]",
            "n[]",
            "n[1",
            "n[[1]]",
            "n[1]]",
            "n[a]",
            "n[1-]",
            "n[-1]",
            "n[2-1]",
            "n[1,]",
            "n 1",
            "n[1-2-3]",
            "a/b",
            "n[1][",
            "é",
            &"n".repeat(LONGEST + 1),
        ] {
            assert_eq!(first_host(none), None, "{none:?}");
        }
    }

    /// Hosts of the same name as Slurm would list them.
    fn written(
        prefix: &str,
        width: usize,
        ranges: &[(u16, u16)],
        suffix: &str,
    ) -> (String, Vec<String>) {
        let mut texts = Vec::new();
        let mut hosts = Vec::new();
        for &(from, more) in ranges {
            let (from, to) = (u32::from(from), u32::from(from) + u32::from(more % 8));
            texts.push(if from == to {
                format!("{from:0width$}")
            } else {
                format!("{from:0width$}-{to:0width$}")
            });
            hosts.extend((from..=to).map(|i| format!("{prefix}{i:0width$}{suffix}")));
        }
        (format!("{prefix}[{}]{suffix}", texts.join(",")), hosts)
    }

    proptest! {
        #[test]
        fn lists_of_hosts(
            prefix in "[a-z][a-z0-9.-]{0,8}",
            width in 0_usize..5,
            ranges in prop::collection::vec(any::<(u16, u16)>(), 1..5),
            suffix in "[a-z-]{0,4}",
            others in prop::collection::vec("[a-z]{1,5}(\\[[0-9]-9\\])?", 0..3),
        ) {
            let (mut list, hosts) = written(&prefix, width, &ranges, &suffix);
            for other in others {
                list = format!("{list},{other}");
            }
            let first = first_host(&list);
            prop_assert_eq!(first.as_ref(), hosts.first());
        }

        #[test]
        fn lists_of_tasks(items in prop::collection::vec((1_usize..100, 1_usize..6), 1..6)) {
            let texts: Vec<_> = items
                .iter()
                .map(|(tasks, times)| match times {
                    1 => tasks.to_string(),
                    _ => format!("{tasks}(x{times})"),
                })
                .collect();
            let list = texts.join(",");
            let all: Vec<_> = items.iter().flat_map(|&(tasks, times)| vec![tasks; times]).collect();
            for (node, tasks) in all.iter().enumerate() {
                prop_assert_eq!(tasks_on(&list, node), Some(*tasks));
            }
            prop_assert_eq!(tasks_on(&list, all.len()), None);
        }

        #[test]
        fn anything(text in "[0-9a-z\\[\\](),x-]{0,40}|.{0,40}", node in any::<usize>()) {
            if let Some(host) = first_host(&text) {
                prop_assert!(!host.is_empty() && host.len() <= LONGEST, "{}", host);
                prop_assert!(!host.contains(['[', ']', ',', ' ', '/']), "{}", host);
            }
            if let Some(tasks) = tasks_on(&text, node) {
                prop_assert!(tasks > 0);
            }
        }
    }
}
