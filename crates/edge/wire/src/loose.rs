//! Deserializers that accept any JSON value, so that a field of an unexpected type is ignored instead of failing a
//! body that the engine may well accept. All of them go through `deserialize_any`, where serde_json bounds nesting.

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// A scalar, or the fact that it was none.
#[derive(Debug, Default, PartialEq)]
pub(crate) enum Loose<'a> {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A number with a fraction or an exponent.
    Float(f64),
    /// A string, unescaped.
    Str(Cow<'a, str>),
    /// An array.
    Array,
    /// An object.
    Object,
}

impl<'a> Loose<'a> {
    /// What it was, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Loose::Null => "null",
            Loose::Bool(_) => "a boolean",
            Loose::Int(_) | Loose::Float(_) => "a number",
            Loose::Str(_) => "a string",
            Loose::Array => "an array",
            Loose::Object => "an object",
        }
    }

    /// A count: a whole number not below 0, also when written as `16.0` or as a string.
    pub(crate) fn count(&self) -> Option<u64> {
        match self {
            Loose::Int(n) => u64::try_from(*n).ok(),
            Loose::Float(x) if *x >= 0.0 && *x < 1e15 && x.fract() == 0.0 => Some(*x as u64),
            Loose::Str(s) => s.parse().ok(),
            _ => None,
        }
    }

    pub(crate) fn string(self) -> Option<Cow<'a, str>> {
        if let Loose::Str(s) = self { Some(s) } else { None }
    }
}

struct LooseVisitor;

impl<'de> Visitor<'de> for LooseVisitor {
    type Value = Loose<'de>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any value")
    }
    fn visit_unit<E>(self) -> Result<Loose<'de>, E> {
        Ok(Loose::Null)
    }
    fn visit_bool<E>(self, v: bool) -> Result<Loose<'de>, E> {
        Ok(Loose::Bool(v))
    }
    fn visit_i64<E>(self, v: i64) -> Result<Loose<'de>, E> {
        Ok(Loose::Int(i128::from(v)))
    }
    fn visit_u64<E>(self, v: u64) -> Result<Loose<'de>, E> {
        Ok(Loose::Int(i128::from(v)))
    }
    fn visit_f64<E>(self, v: f64) -> Result<Loose<'de>, E> {
        Ok(Loose::Float(v))
    }
    fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Loose<'de>, E> {
        Ok(Loose::Str(Cow::Borrowed(v)))
    }
    fn visit_str<E>(self, v: &str) -> Result<Loose<'de>, E> {
        Ok(Loose::Str(Cow::Owned(v.to_owned())))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Loose<'de>, A::Error> {
        SkipVisitor.visit_seq(seq).map(|()| Loose::Array)
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Loose<'de>, A::Error> {
        SkipVisitor.visit_map(map).map(|()| Loose::Object)
    }
}

impl<'de> serde::Deserialize<'de> for Loose<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(LooseVisitor)
    }
}

/// What a visitor that only cares for strings, arrays and objects says to any other value.
macro_rules! any_value {
    ($other:expr) => {
        fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
            f.write_str("any value")
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($other)
        }
        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok($other)
        }
        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok($other)
        }
        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok($other)
        }
        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok($other)
        }
    };
}
pub(crate) use any_value;

/// Skips a value, with bounded nesting (serde's own `IgnoredAny` has no bound in serde_json).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Skip;

impl<'de> serde::Deserialize<'de> for Skip {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(SkipVisitor).map(|()| Skip)
    }
}

struct SkipVisitor;

impl<'de> Visitor<'de> for SkipVisitor {
    type Value = ();

    any_value!(());

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<Skip>()?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key::<IgnoredAny>()?.is_some() {
            map.next_value::<Skip>()?;
        }
        Ok(())
    }
}

/// Whether a value carries something: a string that is not empty, at any depth. Numbers and booleans are framing
/// (an index, a flag), never content.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Payload(pub(crate) bool);

impl<'de> serde::Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(PayloadVisitor).map(Payload)
    }
}

struct PayloadVisitor;

impl<'de> Visitor<'de> for PayloadVisitor {
    type Value = bool;

    any_value!(false);

    fn visit_str<E>(self, v: &str) -> Result<bool, E> {
        Ok(!v.is_empty())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        let mut any = false;
        while let Some(Payload(one)) = seq.next_element()? {
            any |= one;
        }
        Ok(any)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut any = false;
        while map.next_key::<IgnoredAny>()?.is_some() {
            any |= map.next_value::<Payload>()?.0;
        }
        Ok(any)
    }
}

/// Reads the fields of an object; a value of any other type is skipped.
pub(crate) struct Object<F>(pub(crate) F);

/// One object's value that has not been read yet.
pub(crate) struct Entry<'m, M>(pub(crate) &'m mut M);

impl<'de, M: MapAccess<'de>> Entry<'_, M> {
    /// Reads it.
    pub(crate) fn read<T: serde::Deserialize<'de>>(self) -> Result<T, M::Error> {
        self.0.next_value()
    }

    /// Reads it with a seed.
    pub(crate) fn seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, M::Error> {
        self.0.next_value_seed(seed)
    }

    /// Skips it.
    pub(crate) fn skip(self) -> Result<(), M::Error> {
        self.0.next_value::<Skip>().map(|_| ())
    }
}

/// What reads the fields of an object.
pub(crate) trait Fields<'de> {
    /// One field; it must read or skip the entry.
    fn field<M: MapAccess<'de>>(&mut self, key: &str, entry: Entry<'_, M>) -> Result<(), M::Error>;
}

impl<'de, F: Fields<'de>> DeserializeSeed<'de> for Object<&mut F> {
    /// Whether it was an object.
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<bool, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de, F: Fields<'de>> Visitor<'de> for Object<&mut F> {
    type Value = bool;

    any_value!(false);

    fn visit_str<E>(self, _: &str) -> Result<bool, E> {
        Ok(false)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<bool, A::Error> {
        SkipVisitor.visit_seq(seq).map(|()| false)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while let Some(key) = map.next_key::<Key>()? {
            self.0.field(key.as_str(), Entry(&mut map))?;
        }
        Ok(true)
    }
}

/// An object's key: borrowed unless it is written with escapes.
pub(crate) struct Key<'a>(Cow<'a, str>);

impl Key<'_> {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> serde::Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(v)))
            }
            fn visit_str<E>(self, v: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(v.to_owned())))
            }
        }
        d.deserialize_str(KeyVisitor)
    }
}
