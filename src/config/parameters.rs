//! Names of variables that a trigger must not, or should not, set.
//!
//! Whoever may trigger a job chooses the values of its `parameters`. Some variables decide which code a program runs,
//! whatever the program is: who sets them takes over the job, and with it the job's user. sudo removes them from the
//! environment for the same reason (`env_delete`, `sudo -V` lists them), and the C library ignores some of them in
//! setuid programs.

/// Beginnings of refused names.
const REFUSED_BEGINNINGS: [&str; 10] = [
    "CRONKEEPER_", // the run's own facts
    "LD_",
    "_RLD",
    "DYLD_",
    "MALLOC_",
    "KRB5_CONFIG",
    "KRB5_KTNAME",
    "BASH_FUNC_",
    "GIT_CONFIG",
    "GIT_SSH",
];

/// Refused names.
const REFUSED: [&str; 73] = [
    // The shell and where programs are found.
    "PATH",
    "IFS",
    "CDPATH",
    "ENV",
    "BASH_ENV",
    "BASHOPTS",
    "SHELLOPTS",
    "GLOBIGNORE",
    "PS4",
    "PROMPT_COMMAND",
    "FPATH",
    "NULLCMD",
    "READNULLCMD",
    "ZDOTDIR",
    "TMPPREFIX",
    // The C library.
    "GCONV_PATH",
    "GETCONF_DIR",
    "GLIBC_TUNABLES",
    "HOSTALIASES",
    "LOCALDOMAIN",
    "LOCPATH",
    "NIS_PATH",
    "NLSPATH",
    "PATH_LOCALE",
    "RES_OPTIONS",
    "RESOLV_HOST_CONF",
    "TZDIR",
    "SHLIB_PATH",
    "LIBPATH",
    // Terminals.
    "TERMINFO",
    "TERMINFO_DIRS",
    "TERMPATH",
    "TERMCAP",
    // Interpreters.
    "PERLIO_DEBUG",
    "PERLLIB",
    "PERL5LIB",
    "PERL5OPT",
    "PERL5DB",
    "PERL5SHELL",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONINSPECT",
    "PYTHONUSERBASE",
    "PYTHONSTARTUP",
    "PYTHONBREAKPOINT",
    "PYTHONEXECUTABLE",
    "PYTHONPLATLIBDIR",
    "PYTHONWARNINGS",
    "RUBYLIB",
    "RUBYOPT",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "CLASSPATH",
    "NODE_OPTIONS",
    "NODE_PATH",
    "LUA_PATH",
    "LUA_CPATH",
    "LUA_INIT",
    // Programs that others start.
    "EDITOR",
    "VISUAL",
    "PAGER",
    "BROWSER",
    "LESSOPEN",
    "LESSCLOSE",
    "SSH_ASKPASS",
    "SUDO_ASKPASS",
    "GIT_ASKPASS",
    "GIT_EXTERNAL_DIFF",
    "GIT_PROXY_COMMAND",
    "GIT_EXEC_PATH",
    "GIT_EDITOR",
    "GIT_PAGER",
];

/// Names that `check` warns of: they name files that many programs read, or hosts that they talk to.
const DOUBTFUL: [&str; 14] = [
    "HOME",
    "SHELL",
    "TMPDIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "GIT_DIR",
    "GIT_TEMPLATE_DIR",
    "SSH_AUTH_SOCK",
    "OPENSSL_CONF",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_HOME",
    "DOCKER_HOST",
    "KUBECONFIG",
];

/// The endings of names such as `https_proxy`, in small letters.
const PROXY: &str = "_proxy";

/// True if a trigger must never set it.
pub(super) fn is_refused(name: &str) -> bool {
    REFUSED.contains(&name) || REFUSED_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// True if a job should not leave it to those who trigger it.
pub(super) fn is_doubtful(name: &str) -> bool {
    DOUBTFUL.contains(&name) || name.to_ascii_lowercase().ends_with(PROXY)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_makes_any_program_run_other_code_is_refused() {
        for name in ["PATH", "IFS", "BASH_ENV", "ENV", "GCONV_PATH", "LOCPATH", "GLIBC_TUNABLES", "RES_OPTIONS"] {
            assert!(is_refused(name), "{name}");
        }
        for name in ["LD_PRELOAD", "PYTHONPATH", "PERL5OPT", "GIT_SSH_COMMAND", "GIT_CONFIG_COUNT", "BASH_FUNC_ls%%"] {
            assert!(is_refused(name), "{name}");
        }
        for name in ["DAY", "HOST", "REGION", "GIT_BRANCH", "PYTHON_VERSION", "PATHS", "path", "LDAP_URL", "LANG", "TZ"]
        {
            assert!(!is_refused(name) && !is_doubtful(name), "{name}");
        }
        assert!(["HOME", "https_proxy", "ALL_PROXY"].into_iter().all(is_doubtful));
    }

    #[test]
    fn each_name_is_listed_once() {
        let all: Vec<&str> = REFUSED.into_iter().chain(DOUBTFUL).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        let begins = |name: &&&str| REFUSED_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning));
        assert_eq!(all.iter().find(begins), None);
    }
}
