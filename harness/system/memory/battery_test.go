package memory

import (
	"errors"
	"testing"

	"conform/harness/system"
	"conform/harness/system/systemtest"
)

func TestBattery(t *testing.T) {
	b := systemtest.Bench{Cluster: start(t), Clients: Clients{}, Seed: 1, Resending: map[string]string{"idempotence": "false"}}
	for _, c := range systemtest.Checks() {
		t.Run(c.Name, func(t *testing.T) {
			err := c.Run(t.Context(), b)
			if errors.Is(err, system.ErrNotApplicable) {
				t.Skip(err)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}
