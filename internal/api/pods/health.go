package pods

import "strings"

// The limits of what drivers say is wrong with devices (KEP-4680), with volumes, and with the storage behind them
// (KEP-1432).
const (
	MaxHealthConditions = 16
	MaxHealthReason     = 256  // bytes
	MaxHealthMessage    = 1024 // bytes
)

// Shorten returns a text of at most so many bytes, which ends in dots if it was longer. It is valid UTF-8, as protobuf
// wants it.
func Shorten(text string, most int) string {
	const dots = "..."
	text = strings.ToValidUTF8(text, "")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most-len(dots)], "") + dots
	}
	return text
}
