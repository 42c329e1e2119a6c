//! The documents of etcd's JSON gateway: keys and values in base64, numbers of 64 bits as text.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Base64(pub Vec<u8>);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = BASE64_STANDARD.decode(&text);
        bytes.map(Self).map_err(|_| D::Error::invalid_value(Unexpected::Str(&text), &"base64"))
    }
}

/// A number, which the gateway writes as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Number(pub i64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(|_| D::Error::invalid_value(Unexpected::Str(&text), &"a number"))
    }
}

#[derive(Serialize)]
pub struct Txn {
    pub compare: Vec<Compare>,
    pub success: Vec<RequestOp>,
    pub failure: Vec<RequestOp>,
}

/// Compares how often a key was written since it was made; 0: there is none.
#[derive(Serialize)]
pub struct Compare {
    pub key: Base64,
    pub target: &'static str,
    pub result: &'static str,
    pub version: Number,
}

#[derive(Serialize)]
pub enum RequestOp {
    #[serde(rename = "request_range")]
    Range(Range),
    #[serde(rename = "request_put")]
    Put(Put),
    #[serde(rename = "request_delete_range")]
    Delete(Delete),
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Range {
    pub key: Base64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_end: Option<Base64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<Number>,
    /// Most keys of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Number>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keys_only: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub count_only: bool,
}

#[derive(Serialize)]
pub struct Put {
    pub key: Base64,
    pub value: Base64,
}

#[derive(Serialize)]
pub struct Delete {
    pub key: Base64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Header {
    pub revision: Number,
}

#[derive(Debug, Deserialize)]
pub struct TxnResponse {
    #[serde(default)]
    pub header: Header,
    #[serde(default)]
    pub succeeded: bool,
    #[serde(default)]
    pub responses: Vec<ResponseOp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResponseOp {
    pub response_range: Option<RangeResponse>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RangeResponse {
    pub kvs: Vec<KeyValue>,
    pub count: Number,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct KeyValue {
    pub key: Base64,
    pub create_revision: Number,
    pub mod_revision: Number,
    pub version: Number,
    pub value: Base64,
}

#[derive(Serialize)]
pub struct Watch {
    pub create_request: WatchCreate,
}

#[derive(Serialize)]
pub struct WatchCreate {
    pub key: Base64,
}

/// A part of the answer to a watch.
#[derive(Deserialize)]
pub struct Watched {
    pub result: Option<WatchResult>,
}

#[derive(Deserialize)]
pub struct WatchResult {
    #[serde(default)]
    pub created: bool,
    #[serde(default)]
    pub canceled: bool,
    #[serde(default)]
    pub events: Vec<Event>,
}

#[derive(Deserialize)]
pub struct Event {
    pub kv: Option<KeyValue>,
}

#[derive(Serialize)]
pub struct Compaction {
    pub revision: Number,
}

/// What a member says of itself; 3.4 writes some names in the other style.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct StatusResponse {
    pub version: String,
    #[serde(alias = "dbSize")]
    pub db_size: Number,
    /// Absent before 3.6.
    #[serde(alias = "dbSizeQuota")]
    pub db_size_quota: Number,
    pub errors: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct MembersResponse {
    pub members: Vec<serde_json::Value>,
}

#[derive(Serialize)]
pub struct Nothing {}

#[derive(Debug, Deserialize)]
pub struct Anything {}
