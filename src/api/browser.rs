//! Requests that a web page from elsewhere makes a browser send.
//!
//! A page can send simple POST requests to any address, and with its own name resolving to this address it could read
//! the answers (DNS rebinding). The socket is reached by browsers too, through `ssh -L`. Programs such as curl send
//! none of the headers that are looked at here.

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};

use super::RefusedRequest;
use super::network::HostName;

/// The routes, none of whose answers a page of another origin can embed, nor a browser take for something that it is not.
pub(super) fn protected(routes: Router) -> Router {
    routes.layer(middleware::from_fn(protect))
}

async fn protect(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// Refuses requests that change something and that a page of another origin has caused.
pub(super) async fn refuse_foreign_pages(request: Request, next: Next) -> Response {
    let is_reading = matches!(*request.method(), Method::GET | Method::HEAD);
    if is_reading || !is_of_foreign_page(request.headers()) {
        return next.run(request).await;
    }
    let error = "a web page of another origin sent this request";
    RefusedRequest::new(StatusCode::FORBIDDEN, error).into_response()
}

/// Refuses requests on the socket under a name that somebody else can own. On TCP the listener checks names itself.
pub(super) async fn refuse_rebound_names(request: Request, next: Next) -> Response {
    if !is_rebound(request.headers(), request.uri()) {
        return next.run(request).await;
    }
    let error = "the request's `Host` is an internet name: open the socket under `localhost`";
    RefusedRequest::new(StatusCode::MISDIRECTED_REQUEST, error).into_response()
}

fn is_of_foreign_page(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
    let is_foreign_site = site.is_some_and(|site| !matches!(site, b"same-origin" | b"none"));
    let own = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let is_own = |origin: &str| {
        origin.split_once("://").is_some_and(|(_, authority)| !own.is_empty() && authority.eq_ignore_ascii_case(own))
    };
    let mut origins = headers.get_all(header::ORIGIN).iter();
    is_foreign_site || origins.any(|origin| !origin.to_str().is_ok_and(is_own))
}

/// The name in the URI, if there is one, is the one that counts by HTTP; the other one counts here too.
fn is_rebound(headers: &HeaderMap, uri: &Uri) -> bool {
    let hosts = headers.get_all(header::HOST).iter().filter_map(|host| host.to_str().ok());
    let mut hosts = hosts.chain(uri.authority().map(|authority| authority.as_str()));
    hosts.any(|host| HostName::of_authority(host).is_some_and(|name| name.is_public()))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        lines.iter().map(line).collect()
    }

    #[test]
    fn a_request_of_a_page_from_elsewhere_is_told_from_one_of_the_own_page_and_of_a_program() {
        let own = [("host", "localhost:7475"), ("origin", "http://localhost:7475"), ("sec-fetch-site", "same-origin")];
        assert!(!is_of_foreign_page(&headers(&own)) && !is_of_foreign_page(&headers(&own[..1])));
        for foreign in [
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("origin", "http://localhost:8080"),
            ("origin", "http://evil.example/?http://localhost:7475"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert!(is_of_foreign_page(&headers(&[own[0], foreign])), "{foreign:?}");
        }
        assert!(is_of_foreign_page(&headers(&own[1..2])), "there is no host to compare with");
    }

    #[test]
    fn a_name_that_somebody_can_own_is_refused_on_the_socket() {
        for own in ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "cronkeeper", "x", "a.localhost", ""]
        {
            assert!(!is_rebound(&headers(&[("host", own)]), &Uri::from_static("/")), "{own}");
        }
        for other in ["evil.example", "evil.example:8080", "EVIL.example."] {
            assert!(is_rebound(&headers(&[("host", other)]), &Uri::from_static("/")), "{other}");
            let uri = format!("http://{other}/v1/status").parse().unwrap();
            for host in [&[][..], &[("host", "localhost")]] {
                assert!(is_rebound(&headers(host), &uri), "{uri} {host:?}");
            }
        }
        assert!(!is_rebound(&headers(&[("host", "localhost")]), &Uri::from_static("http://localhost/v1/status")));
    }
}
