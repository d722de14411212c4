//! What became of every request of a run.

use crate::flight::Landed;
use crate::watch::Recent;
use forebay_base::Nanos;
use forebay_records::{End, Histogram, Record};
use std::collections::BTreeMap;

/// Times within answers, pooled over the requests of a class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gaps {
    /// Raw times between pieces of an answer.
    pub chunk: Histogram,
    /// Times per token: between pieces, divided by the tokens of a piece.
    pub token: Histogram,
    /// Requests whose server told the tokens of each piece.
    pub told: u64,
    /// Requests that have any.
    pub of: u64,
}

impl Gaps {
    /// Adds those of another class.
    pub fn merge(&mut self, other: &Gaps) {
        self.chunk.merge(&other.chunk);
        self.token.merge(&other.token);
        self.told += other.told;
        self.of += other.of;
    }
}

/// A kind of failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// How often.
    pub count: u64,
    /// What was said the first time.
    pub message: String,
    /// The first request.
    pub number: u64,
}

/// Records of a block.
const BLOCK: usize = 4096;

/// The records of a run. Memory is one record per request.
#[derive(Debug)]
pub struct Book {
    /// In blocks, so that a long list is never moved while requests wait to be recorded.
    blocks: Vec<Vec<Record>>,
    pub(crate) records: Vec<Record>,
    pub(crate) gaps: Vec<Gaps>,
    pub(crate) endpoints: Vec<String>,
    pub(crate) troubles: BTreeMap<&'static str, Trouble>,
    pub(crate) open: u64,
    pub(crate) recent: Recent,
}

impl Book {
    /// Empty, for so many classes.
    pub fn new(classes: usize) -> Book {
        Book {
            blocks: Vec::new(),
            records: Vec::new(),
            gaps: vec![Gaps::default(); classes],
            endpoints: Vec::new(),
            troubles: BTreeMap::new(),
            open: 0,
            recent: Recent::default(),
        }
    }

    /// A request has begun.
    pub fn begin(&mut self) {
        self.open += 1;
        self.recent.scheduled += 1;
    }

    /// Requests that have begun and not ended.
    pub fn open(&self) -> u64 {
        self.open
    }

    /// A request has ended.
    pub fn end(&mut self, mut landed: Landed, now: Nanos) {
        self.open -= 1;
        if let Some(name) = &landed.served_by {
            landed.record.row.endpoint = Some(self.endpoint(name));
        }
        let row = &landed.record.row;
        if let Some(gaps) = self.gaps.get_mut(usize::from(row.class)) {
            for gap in &landed.gaps {
                gaps.chunk.record(*gap);
            }
            for (time, tokens) in &landed.per_token {
                gaps.token.record_many(*time, *tokens);
            }
            gaps.of += u64::from(!landed.gaps.is_empty());
            gaps.told += u64::from(landed.told);
        }
        let label = match row.end {
            End::Failed => landed.record.live.error,
            End::Rejected(reason) => Some(reason),
            _ => None,
        };
        if let Some(label) = label {
            let number = row.number;
            let message = landed.message.take().unwrap_or_default();
            self.troubles.entry(label).or_insert(Trouble { count: 0, message, number }).count += 1;
        }
        self.recent.add(&landed.record, now);
        if self.blocks.last().is_none_or(|b| b.len() == BLOCK) {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        if let Some(block) = self.blocks.last_mut() {
            block.push(landed.record);
        }
    }

    fn endpoint(&mut self, name: &str) -> u32 {
        let known = self.endpoints.iter().position(|e| e == name);
        known.unwrap_or_else(|| {
            self.endpoints.push(name.to_owned());
            self.endpoints.len() - 1
        }) as u32
    }

    /// The records, in the order of their numbers.
    pub fn records(&mut self) -> &[Record] {
        for block in self.blocks.drain(..) {
            self.records.extend(block);
        }
        self.records.sort_unstable_by_key(|r| r.row.number);
        &self.records
    }

    /// Times within answers by class.
    pub fn gaps(&self) -> &[Gaps] {
        &self.gaps
    }
}
