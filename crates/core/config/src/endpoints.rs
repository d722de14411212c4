//! The endpoints file of `file-discovery`.

use crate::table::{self, Datum, Field, Item, Shape};
use forebay_base::{Diagnostic, Diagnostics, Position};
use forebay_document::{Fields, decode, parse};
use forebay_kernel::EndpointSpec;
use forebay_kernel::plugin::ParamKind;
use std::net::{Ipv4Addr, SocketAddrV4};

/// The largest file that is read, in bytes.
pub const MAX_ENDPOINTS_BYTES: usize = 1 << 20;

const TEXT: Shape = Shape::Plain(ParamKind::Text);

static FILE: &[Field] = &[Field::new("endpoints", Shape::List(&Shape::Object(ENDPOINT)), "The endpoints.")];

static ENDPOINT: &[Field] = &[
    Field::required("name", TEXT, "Unique within the namespace."),
    Field::new("namespace", TEXT, "\"default\" if absent."),
    Field::required("address", TEXT, "An IPv4 address."),
    Field::required("port", TEXT, "1 to 65535, as a text."),
    Field::new("labels", Shape::Free, "Texts by name."),
];

/// An endpoint of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEndpoint {
    /// Unique within its namespace.
    pub name: String,
    /// `default` if the file gives none.
    pub namespace: String,
    /// Where it listens.
    pub address: SocketAddrV4,
    /// Labels, sorted by key.
    pub labels: Vec<(String, String)>,
}

impl FileEndpoint {
    /// As the kernel knows it: named `namespace/name`.
    pub fn spec(&self) -> EndpointSpec {
        EndpointSpec { name: format!("{}/{}", self.namespace, self.name), labels: self.labels.clone() }
    }
}

/// Reads an endpoints file, YAML or JSON. Returns the endpoints that are right, and what is wrong with
/// the others: at start, errors refuse the file; at a reload, the right ones may be used.
pub fn read_endpoints(text: &str, file: &str) -> (Vec<FileEndpoint>, Diagnostics) {
    let mut found = Diagnostics::default();
    let out = read(text, &mut found);
    found.finish(file);
    (out, found)
}

fn read(text: &str, found: &mut Diagnostics) -> Vec<FileEndpoint> {
    let mut out: Vec<FileEndpoint> = Vec::new();
    if text.len() > MAX_ENDPOINTS_BYTES {
        let message = format!("the file has {} bytes", text.len());
        found.push(
            Diagnostic::error(Position::default(), "", message)
                .expected(format!("at most {MAX_ENDPOINTS_BYTES}")),
        );
        return out;
    }
    let documents = parse(text, found);
    let Some(root) = documents.first().filter(|n| !n.is_null()) else { return out };
    let Some(top) = table::read(root, &Shape::Object(FILE), "", found) else { return out };
    for item in top.items("endpoints") {
        let Some(e) = endpoint(item, found) else { continue };
        if out.iter().any(|o| (&o.namespace, &o.name) == (&e.namespace, &e.name)) {
            let message = format!("duplicate endpoint {:?} in namespace {:?}", e.name, e.namespace);
            found.push(item.error_at("name", message));
        } else {
            out.push(e);
        }
    }
    out
}

fn endpoint(item: &Item, found: &mut Diagnostics) -> Option<FileEndpoint> {
    let ip = item.get("address").and_then(|a| {
        let ip = a.as_text().and_then(|t| t.parse::<Ipv4Addr>().ok());
        if ip.is_none() {
            let message = format!("{:?} is not an address", a.as_text().unwrap_or_default());
            found.push(a.error(message).expected("an IPv4 address such as \"10.0.0.1\""));
        }
        ip
    });
    let port = item.get("port").and_then(|p| {
        let port = p.as_text().and_then(|t| t.parse::<u16>().ok()).filter(|&n| n > 0);
        if port.is_none() {
            let message = format!("{:?} is not a port", p.as_text().unwrap_or_default());
            found.push(p.error(message).expected("a text from \"1\" to \"65535\""));
        }
        port
    });
    let labels = match item.get("labels") {
        Some(Item { datum: Datum::Node(node), path, .. }) => {
            let entries = Fields::open_any(node, path, found)?.entries();
            let label = |e: &forebay_document::Entry, found: &mut Diagnostics| {
                let value = decode::text(&e.value, &decode::join(path, &e.key), found)?;
                Some((e.key.clone(), value.to_owned()))
            };
            let mut labels: Vec<_> = entries.iter().map(|e| label(e, found)).collect::<Option<_>>()?;
            labels.sort();
            labels
        }
        _ => Vec::new(),
    };
    Some(FileEndpoint {
        name: item.text("name")?.to_owned(),
        namespace: item.text("namespace").unwrap_or("default").to_owned(),
        address: SocketAddrV4::new(ip?, port?),
        labels,
    })
}
