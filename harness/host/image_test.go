package host

import (
	"errors"
	"fmt"
	"testing"

	"conform/fixtures"
)

func TestUnreachable(t *testing.T) {
	tests := []struct {
		err  error
		want bool
	}{
		{errors.New(`Get "https://r.example/v2/": dial tcp: lookup r.example: no such host`), true},
		{errors.New("net/http: request canceled (Client.Timeout exceeded)"), true},
		{fmt.Errorf("pull: %w", errOffline), true},
		{errors.New("manifest for apache/kafka:9.9.9 not found: manifest unknown"), false},
		{errors.New("pull access denied, repository does not exist"), false},
	}
	for _, tt := range tests {
		if got := unreachable(tt.err); got != tt.want {
			t.Errorf("%v: got %t", tt.err, got)
		}
	}
}

func TestParseSource(t *testing.T) {
	for _, s := range Sources() {
		if got, err := ParseSource(string(s)); err != nil || got != s {
			t.Errorf("%s: got %v, %v", s, got, err)
		}
	}
	if got, err := ParseSource(""); err != nil || got != Auto {
		t.Errorf("empty: got %v, %v", got, err)
	}
	var unknown *fixtures.UnknownError
	if _, err := ParseSource("pul"); !errors.As(err, &unknown) || len(unknown.Nearest) == 0 {
		t.Errorf("unknown: got %v", err)
	}
}
