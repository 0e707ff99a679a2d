package postgres

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"conform/harness/system"
)

// base are the settings that differ from PostgreSQL's defaults.
var base = map[string]string{
	"log_line_prefix": "%m %p %a ", // time, process, application_name
}

// owned are settings that the adapter needs as it writes them.
var owned = map[string]string{
	"listen_addresses":        "*",
	"port":                    fmt.Sprint(port),
	"unix_socket_directories": "", // official and packaged builds have different ones, and nobody needs it
	"password_encryption":     "scram-sha-256",
	"ssl":                     "off", // the link must read what passes
	"logging_collector":       "off", // the log is the container's
	"log_destination":         "stderr",
	"lc_messages":             "C",
}

// forbidden are settings that would take the server out of the adapter's hands.
var forbidden = []string{"data_directory", "config_file", "hba_file", "ident_file", "external_pid_file", "include", "include_dir", "include_if_exists"}

// hba lets everybody in who knows the password.
const hba = "host all all all scram-sha-256\n"

// The values of Spec.Timing. They are the same here: PostgreSQL has no timeout that a run would wait for.
const (
	timingShort      = "short"
	timingProduction = "production"
)

var settingName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)

// settingsOf merges the adapter's settings and those of spec. Errors are ErrUsage.
func settingsOf(spec system.Spec) (map[string]string, error) {
	switch spec.Timing {
	case "", timingShort, timingProduction:
	default:
		return nil, fmt.Errorf("timing %q: want %s or %s: %w", spec.Timing, timingShort, timingProduction, system.ErrUsage)
	}
	settings := maps.Clone(base)
	for _, name := range slices.Sorted(maps.Keys(spec.Settings)) {
		_, ours := owned[name]
		switch {
		case ours || slices.Contains(forbidden, name):
			return nil, fmt.Errorf("setting %s belongs to the adapter: %w", name, system.ErrUsage)
		case !settingName.MatchString(name) || strings.ContainsAny(spec.Settings[name], "\r\n\x00"):
			return nil, fmt.Errorf("setting %q is no name of a server setting, or its value no line: %w", name, system.ErrUsage)
		}
		settings[name] = spec.Settings[name]
	}
	return settings, nil
}

// conf writes postgresql.conf.
func conf(settings map[string]string) []byte {
	all := maps.Clone(settings)
	maps.Copy(all, owned)
	quote := strings.NewReplacer(`'`, `''`, `\`, `\\`)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, quote.Replace(all[name]))
	}
	return []byte(b.String())
}
