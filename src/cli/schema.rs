//! `cronkeeper schema`: the JSON Schema of jobs.yaml, for editors.

use super::{Error, Io, json};
use crate::config::json_schema;

#[derive(Debug, clap::Args)]
pub struct Args {}

impl Args {
    /// Prints the schema.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn run(&self, io: &mut Io<'_>) -> Result<(), Error> {
        json::pretty(&json_schema::document(), io.out)?;
        Ok(())
    }
}
