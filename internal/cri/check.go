package cri

// Check finds what would keep New from working, before anything is made: programs
// that are not installed, and settings that contradict each other.
func (c Config) Check() error {
	_, err := c.withDefaults()
	return err
}
