//! Structs in the text of kernels, for tests that compare them with Rust's.

/// Names and offsets of the fields of `struct alignas(16) NAME` in a kernel's text, and its size, by C's
/// rules. Fields are `u32`, `u64`, structs of `known` name, size and alignment or of the same text, and
/// arrays of those. What is called `reserved` is left out. `None` for no such struct.
#[doc(hidden)]
#[must_use]
pub fn struct_fields(
    text: &str,
    name: &str,
    known: &[(&str, usize, usize)],
) -> Option<(Vec<(String, usize)>, usize)> {
    let head = format!("struct alignas(16) {name} {{");
    let body = text.split_once(&head)?.1.split_once("\n};")?.0;
    let code: String = body.lines().map(|line| line.split("//").next().unwrap_or(line)).collect();
    let (mut found, mut at) = (Vec::new(), 0_usize);
    for field in code.split(';').map(str::trim).filter(|field| !field.is_empty()) {
        let (kind, names) = field.split_once(' ')?;
        let (size, align) = match kind {
            "u32" => (4, 4),
            "u64" => (8, 8),
            other => match known.iter().find(|(name, ..)| *name == other) {
                Some((_, size, align)) => (*size, *align),
                None => (struct_fields(text, other, known)?.1, 16),
            },
        };
        for name in names.split(',').map(str::trim) {
            let (name, count) = match name.split_once('[') {
                Some((name, count)) => (name, count.trim_end_matches(']').parse().ok()?),
                None => (name, 1),
            };
            at = at.next_multiple_of(align);
            found.push((name.to_owned(), at));
            at += size * count;
        }
    }
    found.retain(|(name, _)| name != "reserved");
    Some((found, at.next_multiple_of(16)))
}

#[cfg(test)]
mod tests {
    use super::struct_fields;

    #[test]
    fn fields_lie_where_c_puts_them() {
        let text = "
struct alignas(16) Inner {
  u32 a;  // with; a comment
  u64 b[3];
};
struct alignas(16) Outer {
  u32 first, second, third;
  Pitch pitch;
  u32 reserved;
  Inner inner;
};
";
        let known = [("Pitch", 16, 8)];
        let (fields, size) = struct_fields(text, "Outer", &known).unwrap_or_default();
        let fields: Vec<_> = fields.iter().map(|(name, at)| (&**name, *at)).collect();
        let expected = [("first", 0), ("second", 4), ("third", 8), ("pitch", 16), ("inner", 48)];
        assert_eq!((&*fields, size), (&expected[..], 80));
        assert_eq!(struct_fields(text, "Outer", &[]), None);
        assert_eq!(struct_fields(text, "None", &known), None);
    }
}
