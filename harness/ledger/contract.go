package ledger

import "io"

// The codec. Frames are [length uint32 LE][crc32c uint32 LE][batch of events]; the first frame
// of a segment holds its Segment as JSON.

// Segment names one journal file and who wrote it.
type Segment struct {
	Schema int
	Name   string // file name without extension: "producer-1", "engine", "reader"
	Role   string
	Worker string
}

// TODO(contract): NewWriter, Writer.Append, Writer.Flush, Writer.Close, NewReader, Reader.Next.
var _ io.Writer
