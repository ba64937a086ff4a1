package cri

// Check returns an error if New could not work: a program is not installed, or settings
// contradict each other. It creates nothing.
func (c Config) Check() error {
	_, err := c.withDefaults()
	return err
}
