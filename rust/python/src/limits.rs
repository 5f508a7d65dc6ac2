//! The limits of a plan, as Python has them.

use dpsql_limit::{Hashed, Kind};
use pyo3::prelude::*;

use crate::errors::Failure;

#[derive(FromPyObject)]
pub struct Limits {
    keys: usize,
    private: bool,
    hashed: String,
    norm: u32,
    max_rows: u128,
    max_groups: usize,
    in_groups: u128,
    enough: Option<u128>,
    blocks: Vec<Block>,
    names: Vec<String>,
    pub values: bool,
}

#[derive(FromPyObject)]
struct Block {
    kind: String,
    axes: Vec<(u64, u32)>,
    columns: Vec<(Vec<u32>, u128)>,
    coarse: u128,
    weight: u128,
    whole: f64,
}

impl Limits {
    pub fn checked(self) -> Result<dpsql_limit::Limits, Failure> {
        if !(1..=2).contains(&self.norm) {
            return Err(Failure::Limit(dpsql_limit::Error::Columns));
        }
        Ok(dpsql_limit::Limits {
            keys: self.keys,
            private: self.private,
            hashed: match &*self.hashed {
                "" => Hashed::Nothing,
                "keys" if self.private => Hashed::Keys, // public keys may have no number
                "pairs" if self.private || self.values => Hashed::Pairs,
                _ => return Err(Failure::Limit(dpsql_limit::Error::Columns)),
            },
            norm: self.norm,
            max_rows: self.max_rows,
            max_groups: self.max_groups,
            in_groups: self.in_groups,
            enough: self.enough,
            blocks: self.blocks.into_iter().map(Block::checked).collect::<Result<_, _>>()?,
            names: self.names,
        })
    }
}

impl Block {
    fn checked(self) -> Result<dpsql_limit::Block, Failure> {
        let kind = match &*self.kind {
            "rows" => Kind::Rows,
            "persons" => Kind::Persons,
            _ => return Err(Failure::Limit(dpsql_limit::Error::Columns)),
        };
        let axes = self.axes.into_iter().map(|(grid, degree)| dpsql_limit::Axis { grid, degree });
        Ok(dpsql_limit::Block {
            kind,
            axes: axes.collect(),
            columns: self.columns,
            coarse: self.coarse,
            weight: self.weight,
            whole: self.whole,
        })
    }
}
