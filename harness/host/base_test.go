package host

import "testing"

func TestDebianMirror(t *testing.T) {
	tests := []struct {
		name    string
		targets string
		want    string
	}{
		{"Debian, security first", `http://m.example/debian-security/|bookworm-security|main|Debian|Debian-Security
http://m.example/debian/|bookworm-updates|main|Debian|Debian
http://m.example/debian/|bookworm|main|Debian|Debian
`, "http://m.example/debian"},
		{"a mirror under another name", "https://m.example/cache/deb/|trixie|main|Debian|Debian", "https://m.example/cache/deb"},
		{"before the first update", "http://m.example/debian/|trixie|main||", "http://m.example/debian"},
		{"before the first update, another name", "http://m.example/cache/|trixie|main||", ""},
		{"other component only", "http://m.example/debian/|trixie|contrib|Debian|Debian", ""},
		{"Ubuntu", "http://m.example/ubuntu/|noble|main|Ubuntu|Ubuntu", ""},
		{"vendor of something else", "https://m.example/debian/|stable|main|Vendor|Vendor", ""},
		{"not fetched over the web", "file:/srv/debian/|trixie|main|Debian|Debian", ""},
		{"nothing", "\n", ""},
		{"another format", "http://m.example/debian trixie main", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := debianMirror(tt.targets); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
