//! Both ports on real servers: places, terms, commits, and what a cut line does to them.

mod chained;
mod damage;
mod election;
mod ledger;
mod operator;
pub mod fixture;
mod time;
mod trouble;
