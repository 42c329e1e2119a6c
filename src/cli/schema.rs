//! `cronkeeper schema`: the JSON Schema of jobs.yaml, for editors, and the SQL of a cluster's database, for whoever may
//! make schemas there.

use clap::ValueEnum;

use super::{Error, Io, json};
use crate::config::json_schema;
use cronkeeper_cluster::postgres;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to print
    #[arg(value_enum, value_name = "OF", default_value_t)]
    of: Of,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Of {
    /// The JSON Schema of jobs.yaml
    #[default]
    Jobs,
    /// The SQL that creates a cluster's tables in a PostgreSQL database. A node creates them itself if it may
    Postgres,
}

impl Args {
    /// Prints the schema.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn run(&self, io: &mut Io<'_>) -> Result<(), Error> {
        match self.of {
            Of::Jobs => json::pretty(&json_schema::document(), io.out)?,
            Of::Postgres => io.out.write_all(postgres::SCHEMA.as_bytes())?,
        }
        Ok(())
    }
}
