//! Tests of the limits of time, on a clock that moves when everything waits.

use axum::body::Bytes;
use axum::extract::Extension;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use futures_util::stream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::time::{Instant, sleep};

use super::*;
use crate::api::admission::PATIENCE;

impl Endpoints for DuplexStream {
    fn caller(&self) -> Caller {
        Caller::Unknown
    }

    fn local_address(&self) -> Option<SocketAddr> {
        None
    }
}

/// Bytes of the answer that no buffer has room for.
const LARGE: usize = 1 << 20;

fn service() -> ListenerService {
    let router = Router::new()
        .route("/large", get(async |Extension(own): Extension<Arc<Admitted>>| large(&own)))
        .route("/body", post(async |body: Bytes| body.len().to_string()))
        .route("/stream", get(async |Extension(own): Extension<Arc<Admitted>>| events(&own)));
    ListenerService { router, admission: Admission::new(ListenerLimits::NETWORK), network: None }
}

fn large(own: &Admitted) -> Response {
    own.reserve(LARGE).unwrap();
    vec![b'x'; LARGE].into_response()
}

/// A stream with a part each second and without an end.
fn events(own: &Admitted) -> Response {
    assert!(own.become_stream());
    let parts = stream::unfold((), |()| async {
        sleep(Duration::from_secs(1)).await;
        Some((Ok::<_, Infallible>(Bytes::from_static(b"data: {}\n\n")), ()))
    });
    axum::body::Body::from_stream(parts).into_response()
}

/// A client, and the task of its connection, which returns how long the connection has lasted.
struct Client {
    stream: DuplexStream,
    serving: JoinHandle<Duration>,
}

impl Client {
    async fn of(service: &ListenerService, caller: Caller) -> Self {
        let (stream, end) = duplex(64 << 10);
        let admitted = service.admission.admit(caller).await.expect("there is room");
        let (service, began) = (service.clone(), Instant::now());
        let serving = tokio::spawn(async move {
            service.serve_in_time(end, admitted).await;
            began.elapsed()
        });
        Self { stream, serving }
    }

    async fn asking(service: &ListenerService, text: &str) -> Self {
        let mut client = Self::of(service, Caller::Unknown).await;
        client.stream.write_all(text.as_bytes()).await.unwrap();
        client
    }
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

/// Sends the rest of a request, a byte each 100 ms, until the connection is closed.
async fn dribble(mut stream: DuplexStream) {
    while stream.write_all(b"x").await.is_ok() {
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_head_of_a_request_has_five_seconds() {
    let service = service();
    let silent = Client::of(&service, Caller::Unknown).await;
    assert_eq!(silent.serving.await.unwrap().as_secs(), HEAD_TIME.as_secs());
    for begun in ["G", "GET /large HTTP/1.1\r\nHost: localhost\r\nX: "] {
        let Client { stream, serving } = Client::asking(&service, begun).await;
        let sending = tokio::spawn(dribble(stream));
        assert_eq!(serving.await.unwrap().as_secs(), HEAD_TIME.as_secs(), "{begun}");
        sending.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_comes_slowly_is_waited_for_as_long_as_a_connection_may_last() {
    let service = service();
    let head = "POST /body HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n";
    let Client { stream, serving } = Client::asking(&service, head).await;
    let sending = tokio::spawn(dribble(stream));
    assert_eq!(serving.await.unwrap().as_secs(), LIFETIME.as_secs());
    sending.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_read_is_kept_as_long_as_a_connection_may_last() {
    let service = service();
    let client = Client::asking(&service, &request("/large")).await;
    assert_eq!(client.serving.await.unwrap().as_secs(), LIFETIME.as_secs());
}

#[tokio::test(start_paused = true)]
async fn one_that_is_read_ends_with_it() {
    let service = service();
    let mut client = Client::asking(&service, &request("/large")).await;
    let mut answer = Vec::new();
    client.stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.len() > LARGE && client.serving.await.unwrap() < Duration::from_secs(1));
}

/// Three callers hold all that there is, and read nothing.
#[tokio::test(start_paused = true)]
async fn answers_that_nobody_reads_are_closed_for_one_who_asks() {
    let service = service();
    let quota = ListenerLimits::NETWORK.bytes;
    let caller = |last: u8| Caller::Remote([192, 0, 2, last].into());
    let mut held = Vec::new();
    for last in 1..=u8::try_from(quota.total / quota.per_caller).unwrap() {
        for _ in 0..quota.per_caller / LARGE {
            let mut client = Client::of(&service, caller(last)).await;
            client.stream.write_all(request("/large").as_bytes()).await.unwrap();
            held.push(client);
        }
    }
    sleep(PATIENCE).await;
    let mut other = Client::of(&service, caller(9)).await;
    other.stream.write_all(request("/large").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    other.stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200") && answer.len() > LARGE);
    let lasted = held.remove(0).serving.await.unwrap();
    assert_eq!(lasted.as_secs(), PATIENCE.as_secs(), "the oldest");
    assert!(held.iter().all(|client| !client.serving.is_finished()), "no other one");
}

#[tokio::test(start_paused = true)]
async fn a_stream_lasts_longer_and_not_for_ever() {
    let service = service();
    let Client { mut stream, serving } = Client::asking(&service, &request("/stream")).await;
    let reading = tokio::spawn(async move { tokio::io::copy(&mut stream, &mut tokio::io::sink()).await });
    assert_eq!(serving.await.unwrap().as_secs(), (LIFETIME + STREAM_LIFETIME).as_secs());
    assert!(reading.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_has_to_make_room_ends_at_once() {
    let service = service();
    let admitted = service.admission.admit(Caller::Unknown).await.unwrap();
    let (mut client, end) = duplex(64 << 10);
    let serving = tokio::spawn(service.clone().serve_in_time(end, admitted));
    client.write_all(request("/stream").as_bytes()).await.unwrap();
    sleep(LIFETIME * 2).await;
    assert!(!serving.is_finished());
    let most = ListenerLimits::NETWORK.streams;
    let mut others = Vec::new();
    for number in 0..most.total {
        let caller = Caller::Remote([10, 0, 0, u8::try_from(number % 250).unwrap()].into());
        let other = service.admission.admit(caller).await.unwrap();
        assert!(other.become_stream(), "{number}");
        others.push(other);
    }
    let began = Instant::now();
    serving.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1));
}
