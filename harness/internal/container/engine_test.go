package container

import (
	"errors"
	"testing"
)

func TestConnectErrorSortsReasons(t *testing.T) {
	tests := []struct {
		text, named string
		want        error
	}{
		{"permission denied while trying to connect to the docker API at unix:///var/run/docker.sock", "", ErrNoRights},
		{"failed to connect to the docker API at unix:///var/run/docker.sock: no such file or directory", "", ErrNoEngine},
		{"dial tcp 10.0.0.1:2376: i/o timeout", "", ErrNoEngine},
		{"dial tcp 10.0.0.1:2376: i/o timeout", "tcp://10.0.0.1:2376", ErrNamedSilent},
		{"permission denied", "unix:///somewhere", ErrNoRights},
		{"API version 1.38 is not supported by this client: the minimum supported API version is 1.40", "", ErrOldEngine},
	}
	for _, tt := range tests {
		err := connectError(errors.New(tt.text), tt.named)
		var c *ConnectError
		if !errors.As(err, &c) || !errors.Is(err, tt.want) || c.Fix == "" {
			t.Errorf("%s: got %v", tt.text, err)
		}
	}
}
