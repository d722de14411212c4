//! Field tables: one declaration per field feeds decoding, messages, the schema and the printed form.

use forebay_base::{Diagnostic, Diagnostics, Position};
use forebay_document::{Fields, Node, decode};
use forebay_kernel::plugin::{Kind, ParamKind, Value};

use crate::params;

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A value of the kinds that plugin parameters have, too.
    Plain(ParamKind),
    /// A Kubernetes quantity; negative ones are told apart later.
    Quantity,
    /// A Go duration; negative ones are told apart later.
    Duration,
    /// The name of a configured plugin of this kind; of any kind if `None`.
    Ref(Option<Kind>),
    /// A list of one shape.
    List(&'static Shape),
    /// A mapping with these fields.
    Object(&'static [Field]),
    /// Anything, looked at later.
    Free,
}

/// One field of a mapping.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// As in the file.
    pub name: &'static str,
    /// Its type.
    pub shape: Shape,
    /// Whether it has to be there.
    pub required: bool,
    /// What it does and what holds without it, one or two sentences.
    pub doc: &'static str,
    /// What to use instead, for spellings that will go.
    pub instead: Option<&'static str>,
}

impl Field {
    /// A field that may be left out.
    pub const fn new(name: &'static str, shape: Shape, doc: &'static str) -> Field {
        Field { name, shape, required: false, doc, instead: None }
    }
    /// A field that has to be there.
    pub const fn required(name: &'static str, shape: Shape, doc: &'static str) -> Field {
        Field { name, shape, required: true, doc, instead: None }
    }
    /// A spelling that will go.
    pub const fn deprecated(
        name: &'static str,
        shape: Shape,
        doc: &'static str,
        instead: &'static str,
    ) -> Field {
        Field { name, shape, required: false, doc, instead: Some(instead) }
    }
}

/// A decoded value with its place.
#[derive(Clone, Debug)]
pub struct Item {
    /// Where the value starts.
    pub at: Position,
    /// Its path.
    pub path: String,
    /// The value.
    pub datum: Datum,
}

/// A decoded value.
#[derive(Clone, Debug)]
pub enum Datum {
    /// From [`Shape::Plain`] and [`Shape::Ref`].
    Value(Value),
    /// From [`Shape::Quantity`], and from [`Shape::Duration`] in nanoseconds.
    Signed(i64),
    /// From [`Shape::List`]; items that could not be decoded are left out.
    List(Vec<Item>),
    /// From [`Shape::Object`]; fields that are absent or could not be decoded are left out.
    Object(Vec<(&'static str, Item)>),
    /// From [`Shape::Free`].
    Node(Node),
}

impl Item {
    /// A field of an object.
    pub fn get(&self, name: &str) -> Option<&Item> {
        match &self.datum {
            Datum::Object(fields) => fields.iter().find(|(n, _)| *n == name).map(|(_, item)| item),
            _ => None,
        }
    }
    /// The items of a list field; none if it is absent.
    pub fn items(&self, name: &str) -> &[Item] {
        match self.get(name).map(|i| &i.datum) {
            Some(Datum::List(items)) => items,
            _ => &[],
        }
    }
    /// The text, if this is one and not empty: an empty text means absent.
    pub fn as_text(&self) -> Option<&str> {
        match &self.datum {
            Datum::Value(Value::Text(t)) if !t.is_empty() => Some(t),
            _ => None,
        }
    }
    /// A text field that is there and not empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_text()
    }
    /// A truth value field.
    pub fn flag(&self, name: &str) -> Option<bool> {
        match self.get(name)?.datum {
            Datum::Value(Value::Bool(b)) => Some(b),
            _ => None,
        }
    }
    /// A whole number field.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.get(name)?.datum {
            Datum::Value(Value::Int(i)) => Some(i),
            _ => None,
        }
    }
    /// A number field.
    pub fn float(&self, name: &str) -> Option<f64> {
        match self.get(name)?.datum {
            Datum::Value(Value::Float(x)) => Some(x),
            _ => None,
        }
    }
    /// A quantity or duration.
    pub fn signed(&self) -> Option<i64> {
        match self.datum {
            Datum::Signed(i) => Some(i),
            _ => None,
        }
    }
    /// An error at this value.
    pub fn error(&self, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(self.at, self.path.clone(), message)
    }
    /// A warning at this value.
    pub fn warning(&self, message: impl Into<String>) -> Diagnostic {
        Diagnostic::warning(self.at, self.path.clone(), message)
    }
    /// An error at a field of this object, or at the object if the field is not there.
    pub fn error_at(&self, name: &str, message: impl Into<String>) -> Diagnostic {
        let at = self.get(name).map_or(self.at, |i| i.at);
        Diagnostic::error(at, decode::join(&self.path, name), message)
    }
}

/// Decodes a value and reports everything that is wrong with it.
pub fn read(node: &Node, shape: &Shape, path: &str, found: &mut Diagnostics) -> Option<Item> {
    let datum = match shape {
        Shape::Plain(kind) => Datum::Value(params::read(node, kind, path, found)?),
        Shape::Ref(_) => Datum::Value(Value::Text(decode::text(node, path, found)?.to_owned())),
        Shape::Quantity => Datum::Signed(decode::quantity(node, path, found)?),
        Shape::Duration => Datum::Signed(decode::duration(node, path, found)?),
        Shape::List(of) => {
            let items = decode::list(node, path, found)?.iter().enumerate();
            Datum::List(items.filter_map(|(i, n)| read(n, of, &decode::item(path, i), found)).collect())
        }
        Shape::Object(fields) => Datum::Object(read_fields(node, fields, path, found)?),
        Shape::Free => Datum::Node(node.clone()),
    };
    Some(Item { at: node.at, path: path.to_owned(), datum })
}

fn read_fields(
    node: &Node,
    fields: &'static [Field],
    path: &str,
    found: &mut Diagnostics,
) -> Option<Vec<(&'static str, Item)>> {
    let names: Vec<&str> = fields.iter().map(|f| f.name).collect();
    let given = Fields::open(node, path, &names, found)?;
    let mut out = Vec::new();
    for f in fields {
        let value = if f.required { given.require(f.name, found) } else { given.get(f.name) };
        let Some(value) = value else { continue };
        if let Some(instead) = f.instead {
            let at = given.key(f.name).unwrap_or(value.at);
            let message = format!("{} is deprecated; use {instead}", f.name);
            found.push(Diagnostic::warning(at, given.child(f.name), message));
        }
        if let Some(item) = read(value, &f.shape, &given.child(f.name), found) {
            out.push((f.name, item));
        }
    }
    Some(out)
}
