//! The commands for removing a record that messages name, run by the tools of the service itself.

use super::*;
use crate::support::process::output;

/// What somebody has made in the queue by hand.
const ENTRY: &str = "/leader/x-0000000001";

/// Has the commands for an entry carried out, and looks whether it is gone.
async fn remove(store: impl Store, run: impl Fn(&str) -> bool) {
    commit(&store, vec![make(ENTRY), make("/leader/y-0000000002")]).await;
    let named = store.removal(ENTRY).expect("the store has a tool");
    let commands: Vec<&str> = named.split('`').skip(1).step_by(2).collect();
    assert!(!commands.is_empty(), "{named}");
    for command in commands {
        assert!(run(command), "{command}");
    }
    assert!(read(&store, ENTRY).await.is_none(), "{named}");
    let (_, found) = store.read(vec![Wanted::Names("/leader".into())]).await.expect("the store answers");
    let [Found::Names(names)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(names.len(), 1, "{found:?}");
}

fn shell(command: &str, variables: &[(&str, &str)]) -> bool {
    output("sh", |sh| {
        sh.args(["-c", command]).envs(variables.iter().copied());
    })
    .status
    .success()
}

#[tokio::test]
async fn psql_removes_a_record_of_postgres() {
    let place = in_database();
    let port = shared().port().to_string();
    let variables = [("PGHOST", "127.0.0.1"), ("PGUSER", "postgres"), ("PGPORT", &port), ("PGDATABASE", &place.0.name)];
    remove(place.client(), |command| shell(command, &variables)).await;
}

#[tokio::test]
async fn etcdctl_removes_a_record_of_etcd() {
    let place = in_etcd();
    let url = format!("http://{}", etcd::shared().address_of(0));
    let variables = [("ETCDCTL_API", "3"), ("ETCDCTL_ENDPOINTS", url.as_str())];
    remove(place.client(), |command| shell(command, &variables)).await;
}

#[tokio::test]
async fn redis_cli_removes_a_record_of_redis() {
    let port = redis::shared().port();
    let with_port = |command: &str| command.replace("redis-cli ", &format!("redis-cli -p {port} "));
    remove(in_redis().client(), |command| shell(&with_port(command), &[])).await;
}
