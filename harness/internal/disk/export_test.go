package disk

import "context"

// Kill shuts a disk down as a power cut does, and leaves it there.
func (r *Rack) Kill(ctx context.Context, name string) error {
	_, err := r.perl(ctx, "cut", r.Disk(name).dir())
	return err
}
