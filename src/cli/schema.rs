//! `cronkeeper schema`: the JSON Schema of jobs.yaml, for editors.

use std::io;

use super::{Error, Io};
use crate::config::json_schema;

#[derive(Debug, clap::Args)]
pub struct Args {}

impl Args {
    /// Prints the schema.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn run(&self, io: &mut Io<'_>) -> Result<(), Error> {
        serde_json::to_writer_pretty(&mut *io.out, &json_schema::document()).map_err(io::Error::from)?;
        writeln!(io.out)?;
        Ok(())
    }
}
