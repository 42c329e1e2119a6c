//! The style sheet, the script and the icon: part of the program, so that the page loads nothing from elsewhere.
//!
//! Their addresses contain a hash of their content. A browser may therefore keep them for as long as it likes.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

use crate::api::RefusedRequest;

/// A file that belongs to the page.
pub(super) struct Asset {
    /// With a hash before the ending: `page.1a2b3c4d5e6f7a8b.css`.
    name: String,
    kind: &'static str,
    text: &'static str,
}

pub(super) static STYLE: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("css", "text/css; charset=utf-8", include_str!("page.css")));
pub(super) static SCRIPT: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("js", "text/javascript; charset=utf-8", include_str!("page.js")));
pub(super) static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("svg", "image/svg+xml", include_str!("icon.svg")));

impl Asset {
    fn new(ending: &str, kind: &'static str, text: &'static str) -> Self {
        let hash: String = Sha256::digest(text).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self { name: format!("page.{hash}.{ending}"), kind, text }
    }

    pub fn path(&self) -> String {
        format!("/static/{}", self.name)
    }
}

/// `GET /static/{file}`.
pub(super) async fn file(Path(name): Path<String>) -> Response {
    let assets: [&Asset; 3] = [&STYLE, &SCRIPT, &ICON];
    match assets.into_iter().find(|asset| asset.name == name) {
        None => RefusedRequest::new(StatusCode::NOT_FOUND, "not found").into_response(),
        Some(asset) => {
            let headers =
                [(header::CONTENT_TYPE, asset.kind), (header::CACHE_CONTROL, "public, max-age=31536000, immutable")];
            (headers, asset.text).into_response()
        }
    }
}
